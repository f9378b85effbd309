// The classes of size_classes.h on the device.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/base/device/cuda.h"
#include "kernels/codes/size_class_chunks.h"

namespace grace {

// How many numbers of each class but nothing a stretch has, or where they begin.
constexpr int kClasses = 3;
enum Class { kByteClass, kHalfClass, kWholeClass };
// The elements below the least exponent, of which some are bytes, are counted beside them.
constexpr int kBelow = kClasses, kCounts = kClasses + 1;

// The chunks whose numbers a block counts, one a warp at a time.
constexpr int64_t kCounted = 4 * kThreads / kWarp;

// Of counts below 2^16, one above the other.
constexpr int kCountBits = 16;
static_assert(kChunk < 1 << kCountBits);
__device__ inline uint64_t Counts(uint32_t bytes, uint32_t halves, uint32_t wholes,
                                  uint32_t below = 0) {
  return bytes | static_cast<uint64_t>(halves) << kCountBits |
         static_cast<uint64_t>(wholes) << (2 * kCountBits) |
         static_cast<uint64_t>(below) << (3 * kCountBits);
}
__device__ inline int32_t CountOf(uint64_t counts, int which) {
  return static_cast<int32_t>(counts >> (which * kCountBits) & ((1u << kCountBits) - 1));
}

// The sum over the lanes of a warp.
__device__ inline uint64_t SumWarp(uint64_t counts) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    counts += __shfl_xor_sync(kAllLanes, counts, lanes);
  }
  return counts;
}

}  // namespace grace
