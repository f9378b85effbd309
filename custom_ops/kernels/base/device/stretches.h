// Stretches of tensors, for kernels that write their results in order of index. A block takes a
// stretch, and each of its warps a chunk of it, group after group, so that a warp can count by
// itself the results before each element of its chunk.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/base/device/cuda.h"
#include "kernels/base/device/last_block.h"

namespace grace {

constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kStretch = kWarps * kChunk;
// Groups of a chunk, and words of a bit for each element of a stretch.
constexpr int kGroups = static_cast<int>(kChunk / kGroup);
constexpr int kStretchWords = kWarps * kGroups;

// A tensor without elements has a stretch too, whose block writes that nothing was found.
__host__ __device__ inline int64_t StretchesOf(int64_t n) {
  return n > kStretch ? (n + kStretch - 1) / kStretch : 1;
}

// The chunk of this warp in a stretch of a tensor of n elements.
struct WarpChunk {
  int64_t begin, n;  // of the tensor
  int groups;        // those that have elements

  __device__ WarpChunk(int64_t stretch, int64_t size)
      : begin(stretch * kStretch + WarpOf() * kChunk), n(size) {
    const int64_t left = n - begin;
    const int64_t some = (left + kWarp - 1) / kWarp;
    groups = left <= 0 ? 0 : some < kGroups ? static_cast<int>(some) : kGroups;
  }
  // The lane's element of a group, which need not be below n.
  __device__ int64_t At(int group) const { return begin + group * kWarp + Lane(); }
};

// Each count becomes the sum of those before it; returns the sum of all. Called by one block.
template <class T>
__device__ T SumsBefore(T* counts, int64_t size) {
  T before = 0;
  for (int64_t from = 0; from < size; from += kThreads) {
    const int64_t at = from + threadIdx.x;
    T total;
    const T own = at < size ? __ldcg(counts + at) : 0;
    const T sum = before + SumBefore(own, &total);
    if (at < size) counts[at] = sum;
    before += total;
  }
  return before;
}

}  // namespace grace
