// Q = Mt P on the device, one element a thread; see low_rank.h for the order of the sums.
#pragma once

#include "kernels/low_rank/device/matrices.h"

namespace grace {

// What the block of a run reads at a time: kChunk elements of M, and as many rows of P. A thread
// has some of them at hand while the block adds up those before.
class Stage {
 public:
  __device__ Stage(const MatrixItem& own, const Runs& runs, int64_t column, int64_t k)
      : own_(own), runs_(runs), column_(column), k_(k) {}

  __device__ int Rows() const { return static_cast<int>(kChunk >> runs_.log_width); }

  // Reads from a row on, which is before `end`.
  __device__ void Read(int64_t row, int64_t end, const float* basis, float multiplier) {
    const auto line = [&](int j) {
      return row + ((j * kThreads + static_cast<int>(threadIdx.x)) >> runs_.log_width);
    };
    const int64_t column = column_ + (threadIdx.x & ((1 << runs_.log_width) - 1));
    own_.source.Gather<kEach>([&](int j) { return line(j) < end && column < own_.columns; },
                              [&](int j) { return line(j) * own_.columns + column; }, multiplier,
                              0.0f, acc_);
#pragma unroll
    for (int j = 0; j < kFactors / kThreads; ++j) {
      const int at = j * kThreads + threadIdx.x;
      const int64_t i = row + (at >> runs_.log_together);
      const int64_t k = k_ + (at & ((1 << runs_.log_together) - 1));
      const bool inside = at >> runs_.log_together < Rows() && i < end && k < own_.rank;
      factors_[j] = inside ? basis[own_.p + i * own_.rank + k] : 0.0f;
    }
  }
  // Writes the values that this thread has loaded to shared memory.
  __device__ void Give(float* acc, float* factors) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) acc[j * kThreads + threadIdx.x] = acc_[j];
#pragma unroll
    for (int j = 0; j < kFactors / kThreads; ++j) {
      factors[j * kThreads + threadIdx.x] = factors_[j];
    }
  }

  static constexpr int kFactors = 1024;  // 128 rows of eight

 private:
  const MatrixItem& own_;
  const Runs& runs_;
  const int64_t column_, k_;
  float acc_[kEach], factors_[kFactors / kThreads];
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
  Stage stage(own, runs, column - c, factor - k);
  stage.Read(first, end, products.basis, products.multiplier);
  for (int64_t row = first; row < end; row += stage.Rows()) {
    __syncthreads();
    stage.Give(acc, factors);
    __syncthreads();
    const int64_t left = end - row, next = row + stage.Rows();
    if (next < end) stage.Read(next, end, products.basis, products.multiplier);
    const int rows = left < stage.Rows() ? static_cast<int>(left) : stage.Rows();
#pragma unroll 4
    for (int i = 0; i < rows && has; ++i) {
      sum = AddZ(sum, MulZ(acc[(i << runs.log_width) + c], factors[(i << runs.log_together) + k]));
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
