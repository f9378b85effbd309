// Joint results of the threads of a block. Every thread of the block must call these functions.
#pragma once

#include "kernels/base/device/cuda.h"

namespace grace {

struct Maximum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Minimum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
// Sums are of integers: a sum of floats would depend on the order.
struct Total {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// Joins the values of all threads of a block of kThreads, in no fixed order; every thread gets the
// result.
template <class T, class Join>
__device__ T JoinBlock(T value, Join join) {
  __shared__ T parts[kThreads / kWarp];
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = join(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  __syncthreads();
  if (Lane() == 0) parts[WarpOf()] = value;
  __syncthreads();
  T all = parts[0];
#pragma unroll
  for (int w = 1; w < kThreads / kWarp; ++w) all = join(all, parts[w]);
  return all;
}

// The sum of the values of the threads before this one in a block of kThreads, and `total`, that of
// all.
template <class T>
__device__ T SumBefore(T value, T* total) {
  __shared__ T sums[kThreads / kWarp];
  T upto = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const T other = __shfl_up_sync(kAllLanes, upto, lanes);
    if (Lane() >= lanes) upto += other;
  }
  __syncthreads();
  if (Lane() == kWarp - 1) sums[WarpOf()] = upto;
  __syncthreads();
  T before = 0;
  *total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < WarpOf()) before += sums[w];
    *total += sums[w];
  }
  return before + upto - value;
}

}  // namespace grace
