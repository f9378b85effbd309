#include "kernels/low_rank/device/columns.h"
#include "kernels/low_rank/device/matrices.h"
#include "kernels/low_rank/two_sided_low_rank.h"

namespace grace {
namespace {

// A block takes a column of rest = p - left (leftt p); each matrix has `most` blocks.
__global__ void __launch_bounds__(kThreads)
    RestColumns(MatrixTable table, int64_t most, const float* p, const float* left, float* rest,
                float* cosines) {
  const MatrixItem own = table.items[blockIdx.x / most];
  const int64_t k = blockIdx.x % most;
  if (k >= own.rank) return;
  RemoveColumn(own.rows, own.rank, k, p + own.p, left + own.p, rest + own.p,
               cosines + blockIdx.x * most);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_alternate_list(const EncodeInput* sources, int64_t count,
                                           float multiplier, const MatrixSize* sizes,
                                           const float* left, const float* right, float* p,
                                           float* q, float* dense, bool* finite, void* workspace,
                                           size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  const bool keeps = count && sources[0].residual_out;
  int64_t most = 0, p_size = 0;
  for (int64_t i = 0; i < count && keeps; ++i) {
    most = std::max(most, sizes[i].rank);
    p_size += sizes[i].rows * sizes[i].rank;
  }
  MatrixRoom room(launch, sizes, count, true);
  float* const rest = launch.Take<float>(p_size);
  float* const cosines = launch.Take<float>(count * most * most);
  if (launch.OnlyMeasures()) return 0;
  const MatrixTable table = room.Send(
      [=](int64_t i, MatrixItem* item) {
        item->source = {sources[i].x, sources[i].residual};
        item->out = sources[i].residual_out;
        item->own_q = right + item->q;
      },
      finite);
  const Products products{p, dense, left, q, multiplier, finite, false};
  RunProject(launch, table, products);
  RunReproject(launch, table, products);
  if (!keeps) return launch.error();
  launch.Run(RestColumns, count * most, kThreads, table, most, p, left, rest, cosines);
  RunSubtract(launch, table, {{rest, right}, {left, q}}, multiplier);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_expand_sides_list(const DecodeOutput* targets, int64_t count,
                                              const MatrixSize* sizes, Factors bases,
                                              const float* rest, const float* q, const float* dense,
                                              float factor, bool* finite, void* workspace,
                                              size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  MatrixRoom room(launch, sizes, count, false);
  if (launch.OnlyMeasures()) return 0;
  const MatrixTable table =
      room.Send([=](int64_t i, MatrixItem* item) { item->out = targets[i].total; }, finite);
  RunExpand(launch, table, {{rest, bases.q}, {bases.p, q}}, dense, factor, finite);
  return launch.error();
}
