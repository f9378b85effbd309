// Q = Mt P on the device, one element a thread; see low_rank.h for the order of the sums.
#pragma once

#include "kernels/low_rank/device/matrices.h"

namespace grace {

// What the block of a run reads at a time: kChunk elements of M, and the same rows of P. While the
// block adds up these elements, each thread already reads some of the next ones into registers.
// After the run's last row an element of M is -0 and one of P is 0. Their product is -0, which
// changes no sum.
class Stage {
 public:
  // The block reads M from this row and this column on. It reads P from the same row and from
  // column k on.
  __device__ Stage(const MatrixItem& own, const Runs& runs, int64_t row, int64_t column, int64_t k,
                   const float* basis)
      : own_(own), runs_(runs) {
    column += threadIdx.x & ((1 << runs.log_width) - 1);
    k += threadIdx.x & ((1 << runs.log_together) - 1);
    place_ = row * own.columns + column;
    basis_ = basis + own.p + row * own.rank + k;
    has_column_ = column < own.columns;
    has_factor_ = k < own.rank;
  }

  __device__ int Rows() const { return static_cast<int>(kChunk >> runs_.log_width); }

  // Reads the next Rows() rows. The run has `left` more rows, which may be fewer.
  __device__ void Read(int64_t left) {
    left_ = left < Rows() ? static_cast<int>(left) : Rows();
    own_.source.Read<kEach>([&](int j) { return Has(j); },
                            [&](int j) { return place_ + Line(j) * own_.columns; }, acc_, added_);
#pragma unroll
    for (int j = 0; j < kFactors / kThreads; ++j) {
      const int line = (static_cast<int>(threadIdx.x) >> runs_.log_together) +
                       j * (kThreads >> runs_.log_together);
      factors_[j] = line < left_ && has_factor_ ? basis_[line * own_.rank] : 0.0f;
    }
    place_ += Rows() * own_.columns;
    basis_ += Rows() * own_.rank;
  }
  // Copies the values that this thread has read from its registers to shared memory.
  __device__ void Give(float multiplier, float* acc, float* factors) {
    own_.source.Compensate<kEach>(multiplier, acc_, added_);
#pragma unroll
    for (int j = 0; j < kEach; ++j) acc[j * kThreads + threadIdx.x] = Has(j) ? acc_[j] : -0.0f;
#pragma unroll
    for (int j = 0; j < kFactors / kThreads; ++j) {
      factors[j * kThreads + threadIdx.x] = factors_[j];
    }
  }

  static constexpr int kFactors = 1024;  // 128 rows of eight

 private:
  __device__ int Line(int j) const {
    return (static_cast<int>(threadIdx.x) >> runs_.log_width) + j * (kThreads >> runs_.log_width);
  }
  __device__ bool Has(int j) const { return Line(j) < left_ && has_column_; }

  const MatrixItem& own_;
  const Runs& runs_;
  int64_t place_;
  const float* basis_;
  bool has_column_, has_factor_;
  int left_ = 0;
  float acc_[kEach], added_[kEach], factors_[kFactors / kThreads];
};

// Adds up the chunks' sums of a tall matrix' element, one after another.
__device__ inline float SumChunks(const volatile float* sums, int64_t chunks, int64_t stride) {
  float sum = sums[0];
  for (int64_t chunk = 1; chunk < chunks; ++chunk) sum = AddZ(sum, sums[chunk * stride]);
  return sum;
}

__device__ inline void Reproject(const MatrixTable& table, const MatrixItem& own, int64_t run,
                                 const Products& products) {
  __shared__ float acc[kChunk], factors[Stage::kFactors];
  __shared__ bool last;
  const Runs runs(own.rows, own.columns, own.rank);
  const int64_t group = run % runs.groups, cell = run % (runs.tiles * runs.groups);
  const int64_t chunk = run / (runs.tiles * runs.groups);
  const int64_t first = chunk * kRowChunk;
  const int64_t end = own.rows - first < kRowChunk ? own.rows : first + kRowChunk;
  const int width = 1 << runs.log_width, together = 1 << runs.log_together;
  const int c = threadIdx.x & (width - 1), k = threadIdx.x >> runs.log_width;
  const int64_t column = (cell / runs.groups << runs.log_width) + c;
  const int64_t factor = (group << runs.log_together) + k;
  const bool has = k < together && column < own.columns && factor < own.rank;
  float sum = 0.0f;
  Stage stage(own, runs, first, column - c, factor - k, products.basis);
  stage.Read(end - first);
  for (int64_t left = end - first; left > 0; left -= stage.Rows()) {
    __syncthreads();
    stage.Give(products.multiplier, acc, factors);
    __syncthreads();
    if (left > stage.Rows()) stage.Read(left - stage.Rows());
    if (!has) continue;
#pragma unroll 1
    for (int i = 0; i < stage.Rows(); i += kEach) {
      float elements[kEach], shares[kEach], terms[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        elements[j] = acc[((i + j) << runs.log_width) + c];
        shares[j] = factors[((i + j) << runs.log_together) + k];
      }
      MulEachZ<kEach>(elements, shares, terms);
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum = AddZ(sum, terms[j]);
    }
  }
  const int64_t place = column * own.rank + factor, n = own.columns * own.rank;
  float* q = products.q + own.q + place;
  if (runs.chunks == 1) {
    if (has) *q = sum;
    return;
  }
  // The block that comes last finds all sums there.
  float* sums = table.partials + own.partial + place;
  if (has) sums[chunk * n] = sum;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(table.counters + own.counter + cell, 1u) + 1 == runs.chunks;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (has) *q = SumChunks(sums, runs.chunks, n);
}

}  // namespace grace
