#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/finite.h"

namespace grace {
namespace {

struct FiniteItem {
  const float* x;
  int64_t n, first;
};

// A block looks at a piece.
__global__ void __launch_bounds__(kThreads) CheckPieces(Table<FiniteItem> table, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float x[kEach];
  LoadPiece({own.x, nullptr}, 1.0f, begin, n, 0.0f, x);
  NotePiece(x, n, finite);
}

struct NanItem {
  float* y;
  int64_t n, first;
};

// A block makes a piece NaN, or leaves it.
__global__ void __launch_bounds__(kThreads) SpoilPieces(Table<NanItem> table, const bool* finite) {
  if (*finite) return;
  const auto [own, begin, n] = table.Piece();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at < own.n) own.y[at] = __uint_as_float(0x7fc00000u);
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_all_finite(const Floats* list, int64_t count, bool* finite,
                                       void* workspace, size_t* bytes, void* stream) {
  const auto item = [=](int64_t i, int64_t first) {
    return FiniteItem{list[i].data, list[i].size, first};
  };
  return Launch(workspace, bytes, stream).RunPieces(CheckPieces, count, item, finite, finite);
}

GRACE_EXPORT int grace_cuda_nan_unless_list(const DecodeOutput* list, int64_t count,
                                            const bool* finite, void* workspace, size_t* bytes,
                                            void* stream) {
  const auto item = [=](int64_t i, int64_t first) {
    return NanItem{list[i].total, list[i].n, first};
  };
  return Launch(workspace, bytes, stream).RunPieces(SpoilPieces, count, item, nullptr, finite);
}
