#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/weighted_sum.h"

namespace grace {
namespace {

struct MixItem {
  const float *x, *y;
  float* out;
  int64_t n, first;
};

__global__ void __launch_bounds__(kThreads) MixPieces(Table<MixItem> table, float a, float b) {
  const auto [own, begin, n] = table.Piece();
  float mixed[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at < own.n) mixed[j] = AddZ(MulZ(own.x[at], a), MulZ(own.y[at], b));
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at < own.n) own.out[at] = mixed[j];
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_mix_list(const Mixed* list, int64_t count, float a, float b,
                                     void* workspace, size_t* bytes, void* stream) {
  const auto item = [=](int64_t i, int64_t first) {
    return MixItem{list[i].x, list[i].y, list[i].out, list[i].n, first};
  };
  return Launch(workspace, bytes, stream).RunPieces(MixPieces, count, item, nullptr, a, b);
}
