#include "kernels/low_rank/device/matrices.h"
#include "kernels/low_rank/device/project.h"
#include "kernels/low_rank/device/reproject.h"
#include "kernels/low_rank/low_rank.h"

namespace grace {
namespace {

__global__ void __launch_bounds__(kThreads, BlocksAtOnce(2, 1))
    ProjectStrips(MatrixTable table, Products products) {
  const MatrixItem own = table.items[table.Find(blockIdx.x, &MatrixItem::first_strip)];
  ProjectStrip(own, blockIdx.x - own.first_strip, products);
}

// A run waits for memory most of the time, so a multiprocessor should hold several.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(4, 1, 100))
    ReprojectRuns(MatrixTable table, Products products) {
  const MatrixItem own = table.items[table.Find(blockIdx.x, &MatrixItem::first_run)];
  Reproject(table, own, blockIdx.x - own.first_run, products);
}

// A thread's elements of a tile: one column, with rows at a fixed distance.
class TileColumn {
 public:
  __device__ TileColumn(const MatrixItem& own, int64_t piece) : own_(own), tiles_(own.columns) {
    const auto number = static_cast<uint32_t>(piece), across = static_cast<uint32_t>(tiles_.across);
    const uint32_t down = number / across;
    left_ = static_cast<int64_t>(number - down * across) << tiles_.log_width;
    top_ = static_cast<int64_t>(down) << tiles_.log_height;
    own_column_ = static_cast<int>(threadIdx.x) & ((1 << tiles_.log_width) - 1);
    own_row_ = static_cast<int>(threadIdx.x) >> tiles_.log_width;
  }
  __device__ bool Has(int i) const {
    return left_ + own_column_ < own_.columns && top_ + RowInTile(i) < own_.rows;
  }
  __device__ int64_t Place(int i) const {
    return (top_ + RowInTile(i)) * own_.columns + left_ + own_column_;
  }

  // Adds the product of two factors to the sums, or begins them with it. Every thread of the block
  // must call it. The block copies some columns of both factors to shared memory at a time: as many
  // as a tile has, which always fit.
  __device__ void Add(Factors factors, bool begins, float* sums) const {
    __shared__ float p[kChunk], q[kMostWidth * kMostWidth];
    const int width = 1 << tiles_.log_width;
    for (int64_t k = 0; k < own_.rank; k += width) {
      const int some = static_cast<int>(own_.rank - k < width ? own_.rank - k : width);
      __syncthreads();
      for (int i = threadIdx.x; i < some << tiles_.log_height; i += kThreads) {
        const int row = i / some;
        const bool has = top_ + row < own_.rows;
        p[i] = has ? factors.p[own_.p + (top_ + row) * own_.rank + k + i % some] : 0.0f;
      }
      for (int i = threadIdx.x; i < some << tiles_.log_width; i += kThreads) {
        const int64_t column = left_ + (i & (width - 1));
        const int64_t place = own_.q + column * own_.rank + k + (i >> tiles_.log_width);
        q[i] = column < own_.columns ? factors.q[place] : 0.0f;
      }
      __syncthreads();
#pragma unroll 1
      for (int j = 0; j < some; ++j, begins = false) {
        float left[kEach], right[kEach], terms[kEach];
        const float factor = q[(j << tiles_.log_width) + own_column_];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          left[i] = p[RowInTile(i) * some + j];
          right[i] = factor;
        }
        MulEachZ<kEach>(left, right, terms);
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums[i] = begins ? terms[i] : AddZ(sums[i], terms[i]);
      }
    }
  }

 private:
  __device__ int RowInTile(int i) const { return own_row_ + i * (kThreads >> tiles_.log_width); }

  const MatrixItem& own_;
  const Tiles tiles_;
  int64_t left_, top_;
  int own_column_, own_row_;
};

__device__ void Sum(const TileColumn& column, const TwoProducts& products, float* sums) {
  column.Add(products.before, true, sums);
  if (products.after.p) column.Add(products.after, false, sums);
}

__global__ void __launch_bounds__(kThreads)
    SubtractPieces(MatrixTable table, TwoProducts products, float multiplier) {
  const MatrixItem own = table.items[table.Find(blockIdx.x)];
  const int64_t piece = blockIdx.x - own.first;
  float acc[kEach], sums[kEach];
  if (!own.rank) {
    const int64_t begin = piece << kLogChunk, n = own.rows - begin;
    LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) < n) own.out[begin + PlaceOf(j)] = SubZ(acc[j], acc[j]);
    }
    return;
  }
  const TileColumn column(own, piece);
  Sum(column, products, sums);
  // The elements are read after the sums: so a thread needs fewer registers.
  own.source.Gather<kEach>([&](int i) { return column.Has(i); },
                           [&](int i) { return column.Place(i); }, multiplier, 0.0f, acc);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (column.Has(i)) own.out[column.Place(i)] = SubZ(acc[i], sums[i]);
  }
}

__global__ void __launch_bounds__(kThreads, BlocksAtOnce(4, 2))
    ExpandPieces(MatrixTable table, TwoProducts products, const float* dense, float factor,
                 bool* finite) {
  const MatrixItem own = table.items[table.Find(blockIdx.x)];
  const int64_t piece = blockIdx.x - own.first;
  float sums[kEach];
  if (!own.rank) {
    const int64_t begin = piece << kLogChunk, n = own.rows - begin;
    LoadPiece({dense + own.dense, nullptr}, factor, begin, n, 0.0f, sums);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) < n) own.out[begin + PlaceOf(j)] = sums[j];
    }
    return NotePiece(sums, n, finite);
  }
  const TileColumn column(own, piece);
  Sum(column, products, sums);
  bool all = true;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!column.Has(i)) continue;
    const float total = MulZ(sums[i], factor);
    own.out[column.Place(i)] = total;
    all &= IsFinite(total);
  }
  if (!all) *finite = false;
}

}  // namespace

void RunProject(Launch& launch, const MatrixTable& table, const Products& products) {
  launch.Run(ProjectStrips, table.strips, kThreads, table, products);
}

void RunReproject(Launch& launch, const MatrixTable& table, const Products& products) {
  launch.Run(ReprojectRuns, table.runs, kThreads, table, products);
}

void RunSubtract(Launch& launch, const MatrixTable& table, const TwoProducts& products,
                 float multiplier) {
  launch.Run(SubtractPieces, table.pieces, kThreads, table, products, multiplier);
}

void RunExpand(Launch& launch, const MatrixTable& table, const TwoProducts& products,
               const float* dense, float factor, bool* finite) {
  launch.Run(ExpandPieces, table.pieces, kThreads, table, products, dense, factor, finite);
}

}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_expand_list(const DecodeOutput* targets, int64_t count,
                                        const MatrixSize* sizes, const float* p, const float* q,
                                        const float* dense, float factor, bool* finite,
                                        void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  MatrixRoom room(launch, sizes, count, false);
  if (launch.OnlyMeasures()) return 0;
  const MatrixTable table =
      room.Send([=](int64_t i, MatrixItem* item) { item->out = targets[i].total; }, finite);
  RunExpand(launch, table, {{p, q}, {}}, dense, factor, finite);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_project_list(const EncodeInput* sources, int64_t count,
                                         float multiplier, const MatrixSize* sizes,
                                         const float* const* qs, float* p, float* dense,
                                         bool* finite, void* workspace, size_t* bytes,
                                         void* stream) {
  Launch launch(workspace, bytes, stream);
  MatrixRoom room(launch, sizes, count, false);
  if (launch.OnlyMeasures()) return 0;
  const MatrixTable table = room.Send(
      [=](int64_t i, MatrixItem* item) {
        item->source = {sources[i].x, sources[i].residual};
        item->out = sources[i].residual_out;
        item->own_q = qs[i];
      },
      finite);
  const bool keeps = count && sources[0].residual_out;
  RunProject(launch, table, {p, dense, nullptr, nullptr, multiplier, finite, keeps});
  return launch.error();
}

GRACE_EXPORT int grace_cuda_reproject_list(const EncodeInput* sources, int64_t count,
                                           float multiplier, const MatrixSize* sizes,
                                           const float* p, float* q, Factors others,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  MatrixRoom room(launch, sizes, count, true);
  if (launch.OnlyMeasures()) return 0;
  const MatrixTable table = room.Send(
      [=](int64_t i, MatrixItem* item) {
        item->source = {sources[i].x, sources[i].residual};
        item->out = sources[i].residual_out;
      },
      nullptr);
  RunReproject(launch, table, {nullptr, nullptr, p, q, multiplier, nullptr, false});
  const Factors own{p, q};
  const TwoProducts taken = others.p ? TwoProducts{others, own} : TwoProducts{own, {}};
  if (count && sources[0].residual_out) RunSubtract(launch, table, taken, multiplier);
  return launch.error();
}
