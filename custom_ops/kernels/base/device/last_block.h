// Lets the last of several blocks finish the work of all of them, which saves a kernel.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/base/device/cuda.h"

namespace grace {

// Whether this block is the last of this many to arrive. The last one sees what all of them wrote
// before, if it reads past the nearest cache. *arrived must begin at 0.
__device__ inline bool ArrivesAsLast(uint32_t* arrived, int64_t blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) + 1 == blocks;
  __syncthreads();
  __threadfence();
  return last;
}

// Rows of kSums numbers: each becomes the sum of those above it. A block calls it; `totals` gets
// the sums of all, in every thread.
template <int kSums>
__device__ void SumRowsBefore(int64_t (*rows)[kSums], int64_t count, int64_t* totals) {
#pragma unroll
  for (int s = 0; s < kSums; ++s) totals[s] = 0;
  for (int64_t from = 0; from < count; from += kThreads * kEach) {
    const int64_t begin = from + static_cast<int64_t>(threadIdx.x) * kEach;
    int64_t own[kEach][kSums];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        own[j][s] = begin + j < count ? __ldcg(&rows[begin + j][s]) : 0;
      }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      int64_t sum = 0, total;
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum += own[j][s];
      int64_t before = totals[s] + SumBefore(sum, &total);
      totals[s] += total;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (begin + j < count) rows[begin + j][s] = before;
        before += own[j][s];
      }
    }
  }
}

}  // namespace grace
