// Sums in double precision, the upper half added to the lower half until one is left.
#pragma once

#include "kernels/base/device/cuda.h"

namespace grace {

// The elements of a piece such that halves are added early without other threads: thread t has
// element 256 k + t as its k-th.
__device__ inline int StridedPlace(int k) { return k * kThreads + static_cast<int>(threadIdx.x); }

// Of each `block` neighbours in a piece of values, a power of two of them, adds the upper half to
// the lower half until `width` are left, at least kWarp; these are where the first ones were.
__device__ inline void HalveBlocks(int block, int width, double* values) {
  __shared__ double room[kEach][kThreads];
#pragma unroll
  for (int lower = kEach / 2; lower > 0; lower /= 2) {
    if (block < 2 * lower * kThreads) continue;
#pragma unroll
    for (int k = 0; k + lower < kEach; ++k) {
      if (k % (2 * lower) < lower) values[k] += values[k + lower];
    }
  }
  const int thread = threadIdx.x, stretch = block < kThreads ? block : kThreads;
  const int step = block / stretch;
  if (stretch <= width) return;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k % step == 0) room[k][thread] = values[k];
  }
  for (int half = stretch / 2; half >= width; half /= 2) {
    __syncthreads();
    if (thread % stretch >= half) continue;
    for (int k = 0; k < kEach; k += step) room[k][thread] += room[k][thread + half];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k % step == 0) values[k] = room[k][thread];
  }
}

// The sums by halves over the lanes of a warp of each of kEach values: a lane gets that of value
// lane / 4. At first half of the lanes join half of the values, so that 9 exchanges do.
__device__ inline double HalveWarp(double* values) {
  const int lane = Lane();
#pragma unroll
  for (int lanes = kWarp / 2, some = kEach / 2; some > 0; lanes /= 2, some /= 2) {
    const bool upper = lane & lanes;
#pragma unroll
    for (int k = 0; k < some; ++k) {
      const double own = upper ? values[k + some] : values[k];
      const double given = upper ? values[k] : values[k + some];
      values[k] = own + __shfl_xor_sync(kAllLanes, given, lanes);
    }
  }
  double sum = values[0];
#pragma unroll
  for (int lanes = kWarp / kEach / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  return sum;
}

}  // namespace grace
