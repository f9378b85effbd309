// The matrices of a list on the device, as low_rank.h has them, and how kernels cut them.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/low_rank/low_rank.h"

namespace grace {

// A tensor of a list. What it has in the P of all matrices begins at `p`, and so on. A member
// `first...` is the number of its first piece for kernels that cut it so.
struct MatrixItem {
  DeviceInput source;
  float* out;
  const float* own_q;
  int64_t rows, columns, rank;
  int64_t p, q, dense;
  int64_t partial, counter;  // of a tall matrix: its chunks' sums, and what counts them
  int64_t first_strip, first_run, first;
};

// n / 2^log, rounded up.
__host__ __device__ inline int64_t Parts(int64_t n, int log) {
  return (n + (int64_t{1} << log) - 1) >> log;
}

// A strip is some rows of a matrix, or a chunk of a dense tensor.
constexpr int kLogStrip = 5, kLogChunk = 11;
static_assert(kChunk == 1 << kLogChunk);
inline int64_t Strips(const MatrixSize& size) {
  return Parts(size.rows, size.rank ? kLogStrip : kLogChunk);
}

// The least power of two that is not below n, at most 2^most, as its logarithm.
__host__ __device__ inline int PowerAbove(int64_t n, int most) {
  int power = 0;
  while (power < most && int64_t{1} << power < n) ++power;
  return power;
}

// A run is a chunk of a matrix' rows in some of its columns, with some columns of P. All threads of
// its block read elements. For each element of Q one thread adds up the products, from row to row.
// A run has few columns, so that they read many rows at a time.
struct Runs {
  __host__ __device__ Runs(int64_t rows, int64_t columns, int64_t rank)
      : log_together(PowerAbove(rank, 3)),
        log_width(columns <= 16 ? 4 : 5),
        groups(Parts(rank, log_together)),
        tiles(Parts(columns, log_width)),
        chunks(rank ? (rows + kRowChunk - 1) / kRowChunk : 0) {}
  __host__ __device__ int64_t total() const { return chunks * tiles * groups; }

  int log_together, log_width;
  int64_t groups, tiles, chunks;
};

// A tile is kChunk elements of a matrix, a column for each thread, or a chunk of a dense tensor.
constexpr int kLogMostWidth = 5, kMostWidth = 1 << kLogMostWidth;
struct Tiles {
  __host__ __device__ explicit Tiles(int64_t columns)
      : log_width(PowerAbove(columns, kLogMostWidth)),
        log_height(kLogChunk - log_width),
        across(Parts(columns, log_width)) {}
  static int64_t Of(const MatrixSize& size) {
    const Tiles tiles(size.columns);
    return size.rank ? Parts(size.rows, tiles.log_height) * tiles.across
                     : Parts(size.rows, kLogChunk);
  }

  int log_width, log_height;
  int64_t across;
};

// `pieces` are tiles.
struct MatrixTable : Table<MatrixItem> {
  int64_t strips = 0, runs = 0;
  float* partials = nullptr;
  uint32_t* counters = nullptr;
};

// The workspace of a table, taken from a launch; and the table, sent with it.
class MatrixRoom {
 public:
  // With `sums` there is room for the runs of tall matrices.
  MatrixRoom(Launch& launch, const MatrixSize* sizes, int64_t count, bool sums)
      : launch_(launch), sizes_(sizes), count_(count), items_(launch.Take<MatrixItem>(count)) {
    for (int64_t i = 0; i < count && sums; ++i) {
      const Runs runs(sizes[i].rows, sizes[i].columns, sizes[i].rank);
      if (runs.chunks <= 1) continue;
      partials_size_ += runs.chunks * sizes[i].columns * sizes[i].rank;
      counters_size_ += runs.tiles * runs.groups;
    }
    partials_ = launch.Take<float>(partials_size_);
    counters_ = launch.Take<uint32_t>(counters_size_);
  }

  // fill(i, item) sets the members of the i-th tensor's item that are pointers. `finite` may be
  // null.
  template <class Fill>
  MatrixTable Send(const Fill& fill, bool* finite) {
    MatrixItem next{};
    launch_.Zero(counters_, counters_size_);
    const auto make = [&](int64_t i, int64_t first) {
      const auto [rows, columns, rank] = sizes_[i];
      MatrixItem item = next;
      item.first = first;
      item.rows = rows;
      item.columns = columns;
      item.rank = rank;
      fill(i, &item);
      next.p += rows * rank;
      next.q += columns * rank;
      next.dense += rank ? 0 : rows;
      next.first_strip += Strips(sizes_[i]);
      const Runs runs(rows, columns, rank);
      next.first_run += runs.total();
      if (runs.chunks > 1) {
        next.partial += runs.chunks * columns * rank;
        next.counter += runs.tiles * runs.groups;
      }
      return item;
    };
    MatrixTable table;
    static_cast<Table<MatrixItem>&>(table) =
        launch_.Send(items_, count_, make, [&](int64_t i) { return Tiles::Of(sizes_[i]); }, finite);
    table.strips = next.first_strip;
    table.runs = next.first_run;
    table.partials = partials_;
    table.counters = counters_;
    return table;
  }

 private:
  Launch& launch_;
  const MatrixSize* const sizes_;
  const int64_t count_;
  MatrixItem* const items_;
  int64_t partials_size_ = 0, counters_size_ = 0;
  float* partials_;
  uint32_t* counters_;
};

// P = M Q with the Q of the items, and the dense tensors; and q = Mt P of `basis`. With `keeps`
// M is written to the `out` of each item, which may be the memory of x.
struct Products {
  float* p;
  float* dense;
  const float* basis;
  float* q;
  float multiplier;
  bool* finite;
  bool keeps;
};
void RunProject(Launch& launch, const MatrixTable& table, const Products& products);
void RunReproject(Launch& launch, const MatrixTable& table, const Products& products);

// The sum of two products, the one that begins it first; the other's factors may be null.
struct TwoProducts {
  Factors before, after;
};
// The tiles of `out` become acc less the products, zeros for dense tensors.
void RunSubtract(Launch& launch, const MatrixTable& table, const TwoProducts& products,
                 float multiplier);
// The tiles of `out` become the products times factor, and the dense values times factor.
void RunExpand(Launch& launch, const MatrixTable& table, const TwoProducts& products,
               const float* dense, float factor, bool* finite);

}  // namespace grace
