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
  const auto [own, begin, n] = table.Piece();
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
  const auto item = [=](int64_t i, int64_t first) {
    const EncodeInput& own = sources[i];
    return AverageItem{own.x, own.residual, own.residual_out, words[i], own.n, first};
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(AveragePieces, count, item, finite, multiplier, *momentum, finite);
}
