#include "kernels/low_rank/device/matrices.h"
#include "kernels/low_rank/device/project.h"
#include "kernels/low_rank/device/reproject.h"
#include "kernels/low_rank/low_rank.h"

namespace grace {
namespace {

// The first `runs` blocks, which take longest, reproject.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(2, 1))
    ProductPieces(MatrixTable table, Products products, int64_t runs) {
  if (blockIdx.x < runs) {
    const MatrixItem own = table.items[table.Find(blockIdx.x, &MatrixItem::first_run)];
    return Reproject(table, own, blockIdx.x - own.first_run, products);
  }
  const MatrixItem own = table.items[table.Find(blockIdx.x - runs, &MatrixItem::first_strip)];
  ProjectStrip(own, blockIdx.x - runs - own.first_strip, products);
}

// A thread's elements of a tile: one column, with rows at a fixed distance.
class TileColumn {
 public:
  __device__ TileColumn(const MatrixItem& own, int64_t piece) : own_(own), tiles_(own.columns) {
    const int64_t down = piece / tiles_.across;
    column_ =
        (piece % tiles_.across << tiles_.log_width) + (threadIdx.x & ((1 << tiles_.log_width) - 1));
    row_ = (down << tiles_.log_height) + (threadIdx.x >> tiles_.log_width);
  }
  __device__ int64_t Row(int i) const { return row_ + i * (kThreads >> tiles_.log_width); }
  __device__ bool Has(int i) const { return column_ < own_.columns && Row(i) < own_.rows; }
  __device__ int64_t Place(int i) const { return Row(i) * own_.columns + column_; }

  // Adds the product of two factors to the sums, or begins them with it.
  __device__ void Add(Factors factors, bool begins, float* sums) const {
    const float* p = factors.p + own_.p;
    const float* q = factors.q + own_.q + column_ * own_.rank;
    for (int64_t k = 0; k < own_.rank; ++k, begins = false) {
      const float factor = column_ < own_.columns ? q[k] : 0.0f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float product = Has(i) ? MulZ(p[Row(i) * own_.rank + k], factor) : 0.0f;
        sums[i] = begins ? product : AddZ(sums[i], product);
      }
    }
  }

 private:
  const MatrixItem& own_;
  const Tiles tiles_;
  int64_t column_, row_;
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
  own.source.Gather<kEach>([&](int i) { return column.Has(i); },
                           [&](int i) { return column.Place(i); }, multiplier, 0.0f, acc);
  Sum(column, products, sums);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (column.Has(i)) own.out[column.Place(i)] = SubZ(acc[i], sums[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
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

void RunProducts(Launch& launch, const MatrixTable& table, const Products& products, bool projects,
                 bool reprojects) {
  const int64_t strips = projects ? table.strips : 0, runs = reprojects ? table.runs : 0;
  launch.Run(ProductPieces, runs + strips, kThreads, table, products, runs);
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
  RunProducts(launch, table, {p, dense, nullptr, nullptr, multiplier, finite, keeps}, true, false);
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
  RunProducts(launch, table, {nullptr, nullptr, p, q, multiplier, nullptr, false}, false, true);
  const Factors own{p, q};
  const TwoProducts taken = others.p ? TwoProducts{others, own} : TwoProducts{own, {}};
  if (count && sources[0].residual_out) RunSubtract(launch, table, taken, multiplier);
  return launch.error();
}
