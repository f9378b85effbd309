#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/signs/momentum_signs.h"

namespace grace {
namespace {

struct AverageItem {
  const float *x, *m;
  float* residual_out;
  uint32_t* words;
  int64_t n, first;
};

// A block averages one piece and packs its signs.
__global__ void __launch_bounds__(kThreads)
    AveragePieces(Table<AverageItem> table, float multiplier, Momentum momentum, bool* finite) {
  const AverageItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
  const int64_t n = own.n - begin < kChunk ? own.n - begin : kChunk;
  float average[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    average[j] = -1.0f;
    if (at >= own.n) continue;
    const float share = MulZ(MulZ(own.x[at], multiplier), momentum.rest);
    average[j] = AddZ(MulZ(own.m[at], momentum.beta), share);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    const uint32_t word = __ballot_sync(kAllLanes, NotNegativeBits(average[j]));
    if (at >= own.n) continue;
    own.residual_out[at] = average[j];
    if (Lane() == 0) own.words[at / kGroup] = word;
  }
  NotePiece(average, n, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_momentum_sign_list(const EncodeInput* sources, int64_t count,
                                               float multiplier, const Momentum* momentum,
                                               uint32_t* const* words, bool* finite,
                                               void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  AverageItem* const items = launch.Take<AverageItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const auto table = launch.Send(
      items, count,
      [=](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        return AverageItem{own.x, own.residual, own.residual_out, words[i], own.n, first};
      },
      [=](int64_t i) { return CeilDiv(sources[i].n, kChunk); }, finite);
  launch.Run(AveragePieces, table.pieces, kThreads, table, multiplier, *momentum, finite);
  return launch.error();
}
