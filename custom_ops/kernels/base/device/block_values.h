// Gives each element of a piece the number of its block, such as a scale.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"

namespace grace {

// The blocks that the n elements of a tensor from `begin` on lie in, n <= kChunk. They are counted
// from that of the first element, which is `first`.
class PieceBlocks {
 public:
  __device__ PieceBlocks(int64_t begin, int64_t n, int64_t block)
      : first(Quotient(begin, block)), small_(block < kWarp) {
    const int64_t before = begin - first * block;
    offset_ = static_cast<uint32_t>(before);
    // Below 4096 a product with this, shifted by 24, is the quotient.
    inverse_ = block <= kChunk
                   ? ((1u << 24) + static_cast<uint32_t>(block) - 1) / static_cast<uint32_t>(block)
                   : 0;
    left_ = block - before < kChunk ? static_cast<int32_t>(block - before) : kChunk;
    last_ = Of(static_cast<int32_t>(n) - 1);
    uniform_ = block % kWarp == 0 || last_ == 0;
  }

  __device__ int32_t Of(int32_t place) const {
    if (!inverse_) return place >= left_;
    return static_cast<int32_t>(static_cast<uint64_t>(offset_ + place) * inverse_ >> 24);
  }

  // each[j] = value(the number of the block of element PlaceOf(j)), for elements beyond the last
  // that of the last. All lanes of a warp must call it: they share the work, since `value` divides.
  template <class Value>
  __device__ void Give(const Value& value, float* each) const {
    if (small_) {
      // The values are computed one after another and kept in local memory. Computed at the same
      // time, they would need so many registers that the kernel became slower for all sizes of
      // blocks.
      float values[kEach];
#pragma unroll 1
      for (int j = 0; j < kEach; ++j) values[j] = value(first + Within(Of(PlaceOf(j))));
#pragma unroll
      for (int j = 0; j < kEach; ++j) each[j] = values[j];
      return;
    }
    // The block of the first and of the last element of each of the warp's groups: no others.
    const int32_t group = WarpOf() * kEach + Lane() % kEach;
    const int32_t end = Lane() / kEach % 2 ? kWarp - 1 : 0;
    const float own = value(first + Within(Of(group * kWarp + end)));
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      each[j] = __shfl_sync(kAllLanes, own, j);
      if (uniform_) continue;
      const float other = __shfl_sync(kAllLanes, own, j + kEach);
      if (Of(PlaceOf(j)) != Of(PlaceOf(j) - Lane())) each[j] = other;
    }
  }

  const int64_t first;

 private:
  // 32 bits where these are enough, because a division of 64 is slow.
  __device__ static int64_t Quotient(int64_t a, int64_t b) {
    if ((a | b) >> 32) return a / b;
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  __device__ int32_t Within(int32_t block) const { return block < last_ ? block : last_; }

  const bool small_;
  bool uniform_;
  uint32_t offset_, inverse_;
  int32_t left_, last_;
};

// Inverse and Unit of block_factors.h.
__device__ inline float InverseOf(float scale, float levels) {
  return scale < kSmallestScale ? 0.0f : PlainFlush(levels / scale);
}
__device__ inline float UnitOf(float scale, float levels) {
  return scale < kSmallestScale ? 0.0f : scale / levels;
}

}  // namespace grace
