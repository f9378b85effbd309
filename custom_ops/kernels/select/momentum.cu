#include <cfloat>

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/squares.h"
#include "kernels/select/momentum.h"

namespace grace {
namespace {

struct NormItem {
  const float* x;
  double* sums;  // of its pieces
  int64_t n, first;
};

__global__ void __launch_bounds__(kThreads) SumPieces(Table<NormItem> table, float multiplier) {
  const NormItem own = table.items[table.Find(blockIdx.x)];
  const int64_t piece = blockIdx.x - own.first, left = own.n - piece * kChunk;
  float x[kEach];
  LoadPiece({own.x, nullptr}, multiplier, piece * kChunk, left < kChunk ? left : kChunk, 0.0f, x);
  double squares[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) squares[j] = SquareOf(x[j]);
  const double sum = SumPairs(squares);
  if (threadIdx.x == 0) own.sums[piece] = sum;
}

// x as a float, 0 where it is denormal once it is rounded to 24 bits, as SmallProduct has it.
__device__ float Narrowed(double x) {
  return static_cast<float>(x * 0x1p64) < 0x1p-62f ? 0.0f : static_cast<float>(x);
}

// A block finds the scale of a tensor.
__global__ void __launch_bounds__(kThreads)
    FindScales(Table<NormItem> table, float limit, float* scales) {
  const NormItem own = table.items[blockIdx.x];
  const int64_t pieces = (own.n + kChunk - 1) / kChunk;
  JoinPairs(own.sums, pieces);
  if (threadIdx.x != 0) return;
  const double root = pieces > 0 ? sqrt(own.sums[0]) : 0.0;
  const float norm = root < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(root);
  // The norm of what is finite may overflow; it counts as the largest number then.
  const double divisor = norm < FLT_MAX ? norm : FLT_MAX;
  limit = SignedFlush(limit);
  scales[blockIdx.x] = norm > limit ? Narrowed(static_cast<double>(limit) / divisor) : 1.0f;
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_clip_scales(const EncodeInput* sources, int64_t count, float multiplier,
                                        float limit, float* scales, void* workspace, size_t* bytes,
                                        void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t pieces = 0;
  for (int64_t i = 0; i < count; ++i) pieces += CeilDiv(sources[i].n, kChunk);
  NormItem* const items = launch.Take<NormItem>(count);
  double* const sums = launch.Take<double>(pieces);
  if (launch.OnlyMeasures()) return 0;
  const auto table = launch.Send(
      items, count,
      [=](int64_t i, int64_t first) {
        return NormItem{sources[i].x, sums + first, sources[i].n, first};
      },
      [=](int64_t i) { return CeilDiv(sources[i].n, kChunk); }, nullptr);
  launch.Run(SumPieces, table.pieces, kThreads, table, multiplier);
  launch.Run(FindScales, count, kThreads, table, limit, scales);
  return launch.error();
}
