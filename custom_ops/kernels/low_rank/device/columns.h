// Columns of a matrix of low rank on the device: their products with each other, and what a column
// has of a basis. One block does all of it, in the order of orthonormal-inl.h.
#pragma once

#include "kernels/base/device/cuda.h"

namespace grace {

// Every sum, also -0, keeps its bits when this is added; +0 would turn -0 into +0.
constexpr float kNothing = -0.0f;
// So many products are taken together.
constexpr int kTogether = 4;

// A thread's share of kTogether sums of n products, n a power of two: of every kThreads-th product,
// the upper half added to the lower half until one is left. The i-th product of the c-th sum is
// left(c, i) * right(i). The products come by eight, which are a subtree, in the order in which
// subtrees join.
template <class Left, class Right>
__device__ void SumOwn(int64_t count, int64_t n, const Left& left, const Right& right,
                       float* sums) {
  constexpr int kLevels = 32;
  float waiting[kTogether][kLevels];
  const int64_t own = n > kThreads ? n / kThreads : 1, stride = own > kEach ? own / kEach : 1;
  int levels = 0;
  while (int64_t{1} << levels < stride) ++levels;
  for (uint32_t subtree = 0; subtree < stride; ++subtree) {
    const int64_t first = (__brev(subtree) >> 1) >> (31 - levels);
    float common[kEach];
    int64_t at[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t j = first + stride * i;
      at[i] = j < own ? j * kThreads + threadIdx.x : n;
      common[i] = at[i] < n ? right(at[i]) : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      if (c >= count) break;
      float own_left[kEach], tree[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) own_left[i] = at[i] < n ? left(c, at[i]) : 0.0f;
      MulEachZ<kEach>(own_left, common, tree);
#pragma unroll
      for (int i = 0; i < kEach; ++i) tree[i] = at[i] < n ? tree[i] : kNothing;
#pragma unroll
      for (int half = kEach / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; ++i) tree[i] = AddZ(tree[i], tree[i + half]);
      }
      int level = 0;
      for (; subtree >> level & 1; ++level) tree[0] = AddZ(waiting[c][level], tree[0]);
      waiting[c][level] = tree[0];
      sums[c] = tree[0];
    }
  }
}

// The sum over a block's threads by halves, which a warp takes.
__device__ inline float SumThreads(const float* values) {
  constexpr int kWarps = kThreads / kWarp;
  float sums[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sums[w] = values[w * kWarp + Lane()];
#pragma unroll
  for (int half = kWarps / 2; half > 0; half /= 2) {
#pragma unroll
    for (int w = 0; w < half; ++w) sums[w] = AddZ(sums[w], sums[w + half]);
  }
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    sums[0] = AddZ(sums[0], __shfl_xor_sync(kAllLanes, sums[0], lanes));
  }
  return sums[0];
}

// sums[c] = the sum of left(c, i) * right(i) over n elements, for each of `count` columns. Every
// thread of the block must call it. Thread i % kThreads alone calls right(i) and left(c, i).
template <class Left, class Right>
__device__ void DotColumns(int64_t count, int64_t n, const Left& left, const Right& right,
                           float* sums) {
  __shared__ float parts[kTogether][kThreads];
  for (int64_t first = 0; first < count; first += kTogether) {
    const auto column = [&](int c, int64_t i) { return left(first + c, i); };
    float own[kTogether] = {};
    SumOwn(count - first, n, column, right, own);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kTogether; ++c) parts[c][threadIdx.x] = own[c];
    __syncthreads();
    if (WarpOf() < kTogether && first + WarpOf() < count) {
      const float sum = SumThreads(parts[WarpOf()]);
      if (Lane() == 0) sums[first + WarpOf()] = sum;
    }
  }
  __syncthreads();
}

// What element i of w has of a basis of `count` columns, given their cosines with w.
template <class Basis>
__device__ float ShareOf(int64_t count, int64_t i, const Basis& basis, const float* cosines) {
  float share = MulZ(basis(0, i), cosines[0]);
  for (int64_t c = 1; c < count; ++c) share = AddZ(share, MulZ(basis(c, i), cosines[c]));
  return share;
}

// The least power of two that is not below n.
__host__ __device__ inline int64_t PowerOfTwo(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// Column k of rest = w - basis (basist w), all [rows, rank]. `cosines` is room for `rank` numbers.
__device__ inline void RemoveColumn(int64_t rows, int64_t rank, int64_t k, const float* w,
                                    const float* basis, float* rest, float* cosines) {
  const auto column = [=](int64_t c, int64_t i) { return i < rows ? basis[i * rank + c] : 0.0f; };
  const auto own = [=](int64_t i) { return i < rows ? w[i * rank + k] : 0.0f; };
  DotColumns(rank, PowerOfTwo(rows), column, own, cosines);
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
    rest[i * rank + k] = SubZ(own(i), ShareOf(rank, i, column, cosines));
  }
}

}  // namespace grace
