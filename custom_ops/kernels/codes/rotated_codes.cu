#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/rotated_codes.h"

namespace grace {
namespace {

constexpr int kWarps = kThreads / kWarp;

// A tensor that is encoded.
struct RotatedItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* words;
  float* scales;
  int64_t n, first;
  PhiloxKey key;
  float multiplier;
  int32_t unused;
};

// The blocks of a piece of n elements, in shared memory: y holds their elements.
struct Blocks {
  int32_t block, length, count;
  float* y;
  const uint32_t* signs;

  __device__ Blocks(const RotatedCode& code, int64_t n, float* y, const uint32_t* signs)
      : block(static_cast<int32_t>(code.block)), y(y), signs(signs) {
    const int64_t rest = n % code.block;
    length = static_cast<int32_t>(n - rest + (rest ? code.SizeAt(rest) : 0));
    count = static_cast<int32_t>(code.ScalesOf(n));
  }
  __device__ int32_t SizeOf(int32_t b) const {
    return length - b * block < block ? length - b * block : block;
  }
  // v with the sign that the element at this place has.
  __device__ float Flipped(float v, int32_t place) const {
    const int32_t i = place % block;
    const uint32_t sign = signs[i / kWarp] >> (i % kWarp) << 31;
    return __uint_as_float(__float_as_uint(v) ^ sign);
  }
  // Transforms all blocks. Every thread of the block must call it; y is for all to read afterwards.
  __device__ void Transform() const {
    for (int32_t distance = block / 2; distance; distance /= 2) {
      __syncthreads();
      for (int32_t k = threadIdx.x; k < kChunk / 2; k += kThreads) {
        const int32_t i = 2 * distance * (k / distance) + k % distance;
        if (i + distance >= length) continue;  // beyond the last block's own size, too
        const float a = y[i], b = y[i + distance];
        y[i] = AddZ(a, b);
        y[i + distance] = SubZ(a, b);
      }
    }
    __syncthreads();
  }
};

// The words that say which signs of a block are flipped.
__device__ void DrawSigns(const PhiloxKey& key, int64_t block, uint32_t* signs) {
  const int32_t quad = threadIdx.x;
  if (4 * kWarp * quad >= block) return;
  const PhiloxWords drawn = PhiloxBlock(key, quad);
  for (int i = 0; i < 4; ++i) signs[4 * quad + i] = drawn.words[i];
}

// The sum of the lanes' values by halves, which all lanes get.
__device__ float SumByHalves(float value) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = AddZ(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

__device__ float ScaleAsUsed(float scale) { return scale < kLeastRotatedScale ? 0.0f : scale; }

// The codes and the scale of a block, by a warp; y becomes what they stand for.
__device__ float EncodeOne(const RotatedCode& code, float* y, int32_t size, uint32_t power,
                           uint32_t* words) {
  float square = 0.0f;
  for (int32_t i = Lane(); i < size; i += kWarp) square = AddZ(square, MulZ(y[i], y[i]));
  square = SumByHalves(square);
  const auto norm = static_cast<float>(sqrt(static_cast<double>(square) * (1.0 / size)));
  const auto unit = static_cast<float>(code.resolution / static_cast<double>(norm));
  const auto last = static_cast<float>(code.Last());
  float shared = 0.0f, own = 0.0f;
  for (int32_t i = Lane(); i < size; i += kWarp) {
    const float a = fabsf(y[i]), given = MulZ(a, unit);
    const auto steps = static_cast<int32_t>(rintf(given < last ? given : last));
    // How many limits are at most the steps.
    int32_t number = 0;
    for (int32_t half = code.count / 2; half; half /= 2) {
      if (code.limits[number + half - 1] <= steps) number += half;
    }
    const bool negative = y[i] < 0.0f;
    const float centroid = code.centroids[number];
    shared = AddZ(shared, MulZ(centroid, a));
    own = AddZ(own, MulZ(centroid, centroid));
    y[i] = negative ? -centroid : centroid;
    const uint32_t whole = number | static_cast<uint32_t>(negative) << (code.bits - 1);
    for (int32_t p = 0; p < code.bits; ++p) {
      const uint32_t word = __ballot_sync(kAllLanes, whole >> p & 1);
      if (Lane() == p) words[i / kWarp * code.bits + p] = word;
    }
  }
  const double along = SumByHalves(shared);
  const double over = code.least ? along : static_cast<double>(square);
  const double under = code.least ? static_cast<double>(SumByHalves(own)) : along;
  const float scale = static_cast<float>(
      over /
      (under * (static_cast<double>(__uint_as_float(power << 23)) * static_cast<double>(size))));
  for (int32_t i = Lane(); i < size; i += kWarp) y[i] = MulZ(y[i], ScaleAsUsed(scale));
  return scale;
}

// A block encodes a piece, each warp of it whole blocks of elements.
__global__ void __launch_bounds__(kThreads)
    EncodeRotatedPieces(Table<RotatedItem> table, const __grid_constant__ RotatedCode code,
                        bool* finite) {
  __shared__ float y[kChunk];
  __shared__ uint32_t signs[kMostRotated / kGroup + 4], powers[kChunk / kGroup];
  const auto [own, begin, n] = table.Piece();
  const Blocks blocks(code, n, y, signs);
  float acc[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  __syncthreads();
  DrawSigns(own.key, code.block, signs);
  // The elements wait where the residuals will be: registers for them would spill while codes are
  // chosen.
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int place = PlaceOf(j);
    y[place] = acc[j];
    if (own.residual_out && place < n) own.residual_out[begin + place] = acc[j];
  }
  __syncthreads();
  // The biased exponent of each block's factor; 0 where it is sent as zeros, or as NaN.
  for (int32_t b = WarpOf(); b < blocks.count; b += kWarps) {
    uint32_t largest = 0;
    for (int32_t i = Lane(); i < blocks.SizeOf(b); i += kWarp) {
      const uint32_t bits = __float_as_uint(y[b * blocks.block + i]) & kMagnitude;
      largest = bits > largest ? bits : largest;
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const uint32_t other = __shfl_xor_sync(kAllLanes, largest, lanes);
      largest = other > largest ? other : largest;
    }
    const bool usual = largest < kInfinity && largest >= __float_as_uint(kLeastRotated);
    if (Lane() == 0) {
      powers[b] = usual ? 2 * 127 + kRotatedExponent - (largest >> 23) : 0;
      if (!usual)
        own.scales[begin / code.block + b] = __uint_as_float(largest < kInfinity ? 0 : 0x7fc00000);
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int place = PlaceOf(j);
    if (place >= blocks.length) continue;
    const uint32_t power = powers[place / blocks.block];
    y[place] = power ? blocks.Flipped(MulZ(acc[j], __uint_as_float(power << 23)), place) : 0.0f;
  }
  blocks.Transform();
  for (int32_t b = WarpOf(); b < blocks.count; b += kWarps) {
    const int32_t size = blocks.SizeOf(b), at = b * blocks.block;
    uint32_t* const words = own.words + (begin + at) / kGroup * code.bits;
    float* const scale = own.scales + begin / code.block + b;
    if (powers[b]) {
      const float made = EncodeOne(code, y + at, size, powers[b], words);
      if (Lane() == 0) *scale = made;
      continue;
    }
    for (int32_t i = Lane(); i < size / kWarp * code.bits; i += kWarp) words[i] = 0;
    for (int32_t i = Lane(); i < size; i += kWarp) y[at + i] = *scale;
  }
  if (!own.residual_out) return;
  blocks.Transform();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int place = PlaceOf(j);
    if (place >= n) continue;
    const float sent = PlainFlush(blocks.Flipped(y[place], place));
    float& element = own.residual_out[begin + place];
    element = SubZ(element, sent);
  }
}

struct RotatedTarget {
  const uint32_t* words;
  const float* scales;
  float* total;
  int64_t n, first;
  PhiloxKey key;
};

// A block decodes a piece of all workers.
__global__ void __launch_bounds__(kThreads)
    DecodeRotatedPieces(Table<RotatedTarget> table, const __grid_constant__ RotatedCode code,
                        int64_t workers, int64_t words_stride, int64_t scales_stride, float factor,
                        bool* finite) {
  __shared__ float y[kChunk];
  __shared__ uint32_t signs[kMostRotated / kGroup + 4];
  const auto [own, begin, n] = table.Piece();
  const Blocks blocks(code, n, y, signs);
  DrawSigns(own.key, code.block, signs);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int place = PlaceOf(j);
    if (place >= blocks.length) continue;
    const uint32_t* words = own.words + (begin + place) / kGroup * code.bits;
    const float* scale = own.scales + (begin + place) / code.block;
    float sum = 0.0f;
    for (int64_t w = 0; w < workers; ++w, words += words_stride, scale += scales_stride) {
      uint32_t whole = 0;
      for (int32_t p = 0; p < code.bits; ++p) whole |= (words[p] >> Lane() & 1) << p;
      const float centroid = code.centroids[whole & (code.count - 1)];
      const float value = whole >> (code.bits - 1) ? -centroid : centroid;
      sum = AddZ(sum, MulZ(value, ScaleAsUsed(*scale)));
    }
    y[place] = sum;
  }
  blocks.Transform();
  float sums[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int place = PlaceOf(j);
    sums[j] = place < n ? PlainFlush(blocks.Flipped(y[place], place)) : 0.0f;
  }
  StoreTotals(sums, factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_encode_rotated(const EncodeInput* list, int64_t count, float multiplier,
                                           const PhiloxKey* keys, const RotatedCode* code,
                                           uint32_t* words, float* scales, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const RotatedItem item{{own.x, own.residual},
                           own.residual_out,
                           words,
                           scales,
                           own.n,
                           first,
                           keys[i],
                           multiplier,
                           0};
    words += code->WordsOf(own.n);
    scales += code->ScalesOf(own.n);
    return item;
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(EncodeRotatedPieces, count, next, finite, *code, finite);
}

GRACE_EXPORT int grace_cuda_decode_rotated(const DecodeOutput* list, int64_t count,
                                           RotatedRows rows, const PhiloxKey* keys,
                                           const RotatedCode* code, float factor, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  RotatedTarget* const items = launch.Take<RotatedTarget>(count);
  if (launch.OnlyMeasures()) return 0;
  int64_t words = 0, scales = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const int64_t n = list[i].n;
        const RotatedTarget item{
            rows.words + words, rows.scales + scales, list[i].total, n, first, keys[i]};
        words += code->WordsOf(n);
        scales += code->ScalesOf(n);
        return item;
      },
      finite);
  launch.Run(DecodeRotatedPieces, table.pieces, kThreads, table, *code, rows.workers, words, scales,
             factor, finite);
  return launch.error();
}
