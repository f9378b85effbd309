// Sums in double precision, of squares and others, over adjacent pairs, then pairs of pairs, as in
// scales.h.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"

namespace grace {

// The square, a denormal as 0.
__device__ inline double SquareOf(float x) {
  const double wide = static_cast<double>(SignedFlush(x));
  return wide * wide;
}

// The sum of a piece's values, which are where LoadPiece has its elements. Every thread of the
// block must call it and gets the sum.
__device__ inline double SumPairs(double* values) {
  __shared__ double warps[kThreads / kWarp];
  const int lane = Lane();
  // Over neighbouring lanes. At first half of the lanes join half of the values.
#pragma unroll
  for (int lanes = 1, some = kEach / 2; some > 0; lanes *= 2, some /= 2) {
    const bool upper = lane & lanes;
#pragma unroll
    for (int j = 0; j < some; ++j) {
      const double own = upper ? values[j + some] : values[j];
      const double given = upper ? values[j] : values[j + some];
      values[j] = own + __shfl_xor_sync(kAllLanes, given, lanes);
    }
  }
  double sum = values[0];
#pragma unroll
  for (int lanes = kEach; lanes < kWarp; lanes *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  // The j-th value is now where the lanes' bits are those of j, the lowest one first.
#pragma unroll
  for (int lanes = kEach / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  __syncthreads();
  if (lane == 0) warps[WarpOf()] = sum;
  __syncthreads();
  double all[kThreads / kWarp];
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) all[w] = warps[w];
#pragma unroll
  for (int apart = 1; apart < kThreads / kWarp; apart *= 2) {
#pragma unroll
    for (int w = 0; w < kThreads / kWarp; w += 2 * apart) all[w] += all[w + apart];
  }
  return all[0];
}

// The sum of `count` sums in memory, which it spoils; other blocks may have written them, see
// last_block.h. Every thread of the block must call it; the result is in sums[0].
__device__ inline void JoinPairs(double* sums, int64_t count) {
  for (int64_t apart = 1; apart < count; apart *= 2) {
    __syncthreads();
    for (int64_t i = 2 * apart * threadIdx.x; i + apart < count; i += 2 * apart * kThreads) {
      sums[i] = __ldcg(sums + i) + __ldcg(sums + i + apart);
    }
  }
  __syncthreads();
}

}  // namespace grace
