#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/quantize/narrow.h"

namespace grace {
namespace {

struct NarrowItem {
  const float* x;
  uint16_t* halves;
  int64_t n, first;
  uint32_t variable_draw;
  int32_t unused;
};

// A block rounds a piece.
__global__ void __launch_bounds__(kThreads) NarrowPieces(Table<NarrowItem> table, PhiloxKey key) {
  const auto [own, begin, n] = table.Piece();
  uint32_t random[kEach];
  key.variable_draw = own.variable_draw;
  DrawCoarsePiece(key, begin, random);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at >= own.n) continue;
    const uint32_t bits = __float_as_uint(own.x[at]), rounded = bits + (random[j] >> 16);
    const bool number = (rounded & kMagnitude) < kInfinity;
    own.halves[at] = static_cast<uint16_t>((number ? rounded : bits) >> 16);
  }
}

struct WidenItem {
  const uint16_t* halves;
  float* x;
  int64_t n, first;
};

__global__ void __launch_bounds__(kThreads) WidenPieces(Table<WidenItem> table) {
  const auto [own, begin, n] = table.Piece();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at < own.n) own.x[at] = __uint_as_float(static_cast<uint32_t>(own.halves[at]) << 16);
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_to_halves_list(const Narrowed* list, int64_t count,
                                           const PhiloxKey* key, void* workspace, size_t* bytes,
                                           void* stream) {
  const auto item = [=](int64_t i, int64_t first) {
    const Narrowed& own = list[i];
    return NarrowItem{own.x, own.halves, own.n, first, own.variable_draw, 0};
  };
  return Launch(workspace, bytes, stream).RunPieces(NarrowPieces, count, item, nullptr, *key);
}

GRACE_EXPORT int grace_cuda_from_halves_list(const Widened* list, int64_t count, void* workspace,
                                             size_t* bytes, void* stream) {
  const auto item = [=](int64_t i, int64_t first) {
    return WidenItem{list[i].halves, list[i].x, list[i].n, first};
  };
  return Launch(workspace, bytes, stream).RunPieces(WidenPieces, count, item, nullptr);
}
