#include "kernels/base/device/launch.h"
#include "kernels/base/device/totals.h"
#include "kernels/signs/device/cells.h"
#include "kernels/signs/scaled_signs.h"

namespace grace {
namespace {

struct SumItem {
  float* total;
  DeviceCells cells;
  int64_t n, first, words_at, levels_at;
};

// Adds up what the workers' signs stand for.
__global__ void __launch_bounds__(kThreads, 2)
    SumPieces(Table<SumItem> table, ScaledRows rows, float factor, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  const PieceCells cells(own.cells, begin);
  float sums[kEach] = {};
  int64_t levels_at[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) levels_at[j] = own.levels_at + cells.Of(PlaceOf(j));
  for (int64_t w = 0; w < rows.workers; ++w) {
    const float* const high = rows.high + w * rows.levels_stride;
    const float* const low = rows.low ? rows.low + w * rows.levels_stride : nullptr;
    const uint32_t* const words = rows.words + w * rows.words_stride + own.words_at;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) >= n) continue;
      const bool up = words[(begin + PlaceOf(j)) / kGroup] >> Lane() & 1;
      float level;
      if (up) {
        level = high[levels_at[j]];
      } else {
        level = low ? low[levels_at[j]] : SubZ(0.0f, high[levels_at[j]]);
      }
      sums[j] = PlainFlush(AddZ(sums[j], level));
    }
  }
  StoreTotals(sums, factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_sum_scaled_sign_list(const ScaledRows* rows, const Cells* cells,
                                                 int64_t count, const DecodeOutput* targets,
                                                 float factor, bool* finite, void* workspace,
                                                 size_t* bytes, void* stream) {
  int64_t words_at = 0, levels_at = 0;
  const auto next = [&](int64_t i, int64_t first) {
    const DecodeOutput& own = targets[i];
    const SumItem item{own.total, DeviceCells::From(cells[i]), own.n, first, words_at, levels_at};
    words_at += PackedWords(own.n, 1);
    levels_at += cells[i].Count(own.n);
    return item;
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(SumPieces, count, next, finite, *rows, factor, finite);
}
