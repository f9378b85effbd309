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
  const FiniteItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
  const int64_t n = own.n - begin < kChunk ? own.n - begin : kChunk;
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
  const NanItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
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
  Launch launch(workspace, bytes, stream);
  FiniteItem* const items = launch.Take<FiniteItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const auto table = launch.Send(
      items, count,
      [=](int64_t i, int64_t first) { return FiniteItem{list[i].data, list[i].size, first}; },
      [=](int64_t i) { return CeilDiv(list[i].size, kChunk); }, finite);
  launch.Run(CheckPieces, table.pieces, kThreads, table, finite);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_nan_unless_list(const DecodeOutput* list, int64_t count,
                                            const bool* finite, void* workspace, size_t* bytes,
                                            void* stream) {
  Launch launch(workspace, bytes, stream);
  NanItem* const items = launch.Take<NanItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const auto table = launch.Send(
      items, count,
      [=](int64_t i, int64_t first) { return NanItem{list[i].total, list[i].n, first}; },
      [=](int64_t i) { return CeilDiv(list[i].n, kChunk); }, nullptr);
  launch.Run(SpoilPieces, table.pieces, kThreads, table, finite);
  return launch.error();
}
