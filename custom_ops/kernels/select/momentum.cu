#include <cfloat>

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/last_block.h"
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

// An empty tensor has a piece too, whose block finds its scale.
__host__ __device__ int64_t PiecesOf(int64_t n) {
  return n > kChunk ? (n + kChunk - 1) / kChunk : 1;
}

// x as a float, 0 where it is denormal once it is rounded to 24 bits, as SmallProduct has it.
__device__ float Narrowed(double x) {
  return static_cast<float>(x * 0x1p64) < 0x1p-62f ? 0.0f : static_cast<float>(x);
}

// A block sums up the squares of a piece; the last one of a tensor finds its scale.
__global__ void __launch_bounds__(kThreads)
    MeasurePieces(Table<NormItem> table, float multiplier, float limit, uint32_t* arrived,
                  float* scales) {
  const int32_t tensor = table.Find(blockIdx.x);
  const NormItem own = table.items[tensor];
  const int64_t piece = blockIdx.x - own.first, left = own.n - piece * kChunk;
  float x[kEach];
  LoadPiece({own.x, nullptr}, multiplier, piece * kChunk, left < kChunk ? left : kChunk, 0.0f, x);
  double squares[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) squares[j] = SquareOf(x[j]);
  const double sum = SumPairs(squares);
  if (threadIdx.x == 0) own.sums[piece] = sum;
  if (!ArrivesAsLast(arrived + tensor, PiecesOf(own.n))) return;
  JoinPairs(own.sums, PiecesOf(own.n));
  if (threadIdx.x != 0) return;
  const double root = sqrt(__ldcg(own.sums));
  const float norm = root < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(root);
  // The norm of what is finite may overflow; it counts as the largest number then.
  const double divisor = norm < FLT_MAX ? norm : FLT_MAX;
  limit = SignedFlush(limit);
  scales[tensor] = norm > limit ? Narrowed(static_cast<double>(limit) / divisor) : 1.0f;
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_clip_scales(const EncodeInput* sources, int64_t count, float multiplier,
                                        float limit, float* scales, void* workspace, size_t* bytes,
                                        void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t pieces = 0;
  for (int64_t i = 0; i < count; ++i) pieces += PiecesOf(sources[i].n);
  NormItem* const items = launch.Take<NormItem>(count);
  double* const sums = launch.Take<double>(pieces);
  uint32_t* const arrived = launch.Take<uint32_t>(count);
  launch.Zero(arrived, count);
  if (launch.OnlyMeasures()) return 0;
  const auto table = launch.Send(
      items, count,
      [=](int64_t i, int64_t first) {
        return NormItem{sources[i].x, sums + first, sources[i].n, first};
      },
      [=](int64_t i) { return PiecesOf(sources[i].n); }, nullptr);
  launch.Run(MeasurePieces, pieces, kThreads, table, multiplier, limit, arrived, scales);
  return launch.error();
}
