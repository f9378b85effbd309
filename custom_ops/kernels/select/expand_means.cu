#include "kernels/base/device/cuda.h"
#include "kernels/base/device/launch.h"
#include "kernels/select/two_means.h"

namespace grace {
namespace {

struct MeansItem {
  int64_t k, first;        // first: of the pieces of one worker
  int64_t entries, words;  // where its entries and its signs begin
};

// A block expands one worker's part of a piece; the workers' blocks follow each other.
__global__ void __launch_bounds__(kThreads)
    ExpandPieces(Table<MeansItem> table, const float* means, const uint32_t* signs, int64_t entries,
                 int64_t words, float* values) {
  const int64_t worker = blockIdx.x / table.pieces, piece = blockIdx.x % table.pieces;
  const int32_t tensor = table.Find(piece);
  const MeansItem own = table.items[tensor];
  means += 2 * (worker * table.count + tensor);
  signs += worker * words + own.words;
  values += worker * entries + own.entries;
  const float positive = means[0], negative = means[1];
  const int64_t begin = (piece - own.first) * kChunk;
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + threadIdx.x + j * kThreads;
    if (at >= own.k) return;
    values[at] = signs[at / kGroup] >> (at % kGroup) & 1 ? positive : negative;
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_expand_means(const float* means, const uint32_t* signs, int64_t workers,
                                         const int64_t* ks, int64_t count, float* values,
                                         void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  MeansItem* const items = launch.Take<MeansItem>(count);
  if (launch.OnlyMeasures()) return 0;
  int64_t entries = 0, words = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const MeansItem item{ks[i], first, entries, words};
        entries += ks[i];
        words += PackedWords(ks[i], 1);
        return item;
      },
      [=](int64_t i) { return CeilDiv(ks[i], kChunk); }, nullptr);
  launch.Run(ExpandPieces, workers * table.pieces, kThreads, table, means, signs, entries, words,
             values);
  return launch.error();
}
