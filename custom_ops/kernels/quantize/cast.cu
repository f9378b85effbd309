#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/totals.h"
#include "kernels/quantize/cast.h"

namespace grace {
namespace {

// The conversions of vector/float16.h.
__device__ uint16_t ToFloat16(float x) {
  const uint32_t bits = __float_as_uint(x), key = bits & kMagnitude, shifted = key >> 13;
  uint32_t half = (key + 0xfff - (112u << 23) + (shifted & 1)) >> 13;
  if (key < 0x38800000) {
    half = __float_as_uint(__uint_as_float(key) + 0.5f) - __float_as_uint(0.5f);
  }
  if (key > 0x477fffff) half = 0x7c00;
  if (key > kInfinity) half = 0x7e00 | (shifted & 0x3ff);
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

__device__ float FromFloat16(uint16_t half) {
  constexpr uint32_t kRebias = 112u << 23, kSpecial = 0x0f800000, kLeast = 113u << 23;
  const uint32_t key = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
  uint32_t bits = key + kRebias;
  if (key >= kSpecial) bits += kRebias;
  if (key < 0x00800000) {
    bits = __float_as_uint(__uint_as_float(key + kLeast) - __uint_as_float(kLeast));
  }
  if (key > kSpecial) bits |= 0x00400000;
  return __uint_as_float(bits | sign);
}

__device__ uint16_t ToBfloat16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & kMagnitude) > kInfinity) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <Half kType>
__device__ uint16_t ToHalf(float x) {
  return kType == Half::kFloat16 ? ToFloat16(x) : ToBfloat16(x);
}

template <Half kType>
__device__ float FromHalf(uint16_t half) {
  if (kType == Half::kFloat16) return FromFloat16(half);
  return __uint_as_float(static_cast<uint32_t>(half) << 16);
}

struct CastItem {
  DeviceInput source;
  float* residual_out;
  uint16_t* halves;
  int64_t n, first;
};

// A block casts a piece.
template <Half kType>
__global__ void __launch_bounds__(kThreads)
    CastPieces(Table<CastItem> table, float multiplier, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at >= own.n) continue;
    const uint16_t half = ToHalf<kType>(acc[j]);
    own.halves[at] = half;
    if (own.residual_out) own.residual_out[at] = SubZ(acc[j], FromHalf<kType>(half));
  }
}

struct UncastItem {
  const uint16_t* halves;
  float* total;
  int64_t n, first;
};

template <Half kType>
__global__ void __launch_bounds__(kThreads)
    UncastPieces(Table<UncastItem> table, float factor, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float values[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    values[j] = PlaceOf(j) < n ? FromHalf<kType>(own.halves[begin + PlaceOf(j)]) : 0.0f;
  }
  StoreTotals(values, factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_cast_list(const EncodeInput* list, int64_t count, float multiplier,
                                      Half type, uint16_t* halves, bool* finite, void* workspace,
                                      size_t* bytes, void* stream) {
  const auto cast =
      type == Half::kFloat16 ? CastPieces<Half::kFloat16> : CastPieces<Half::kBfloat16>;
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const CastItem item{{own.x, own.residual}, own.residual_out, halves, own.n, first};
    halves += own.n;
    return item;
  };
  return Launch(workspace, bytes, stream).RunPieces(cast, count, next, finite, multiplier, finite);
}

GRACE_EXPORT int grace_cuda_uncast_list(const DecodeOutput* list, int64_t count, Half type,
                                        const uint16_t* halves, float factor, bool* finite,
                                        void* workspace, size_t* bytes, void* stream) {
  const auto uncast =
      type == Half::kFloat16 ? UncastPieces<Half::kFloat16> : UncastPieces<Half::kBfloat16>;
  const auto next = [&](int64_t i, int64_t first) {
    const UncastItem item{halves, list[i].total, list[i].n, first};
    halves += list[i].n;
    return item;
  };
  return Launch(workspace, bytes, stream).RunPieces(uncast, count, next, finite, factor, finite);
}
