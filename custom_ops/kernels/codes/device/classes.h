// The classes of classes.h on the device.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/base/device/cuda.h"
#include "kernels/codes/classes.h"

namespace grace {

// How many numbers of each class but nothing a stretch has, or where they begin.
constexpr int kClasses = 3;
enum Class { kByteClass, kHalfClass, kWholeClass };

// The chunks whose numbers a block counts, one a warp at a time.
constexpr int64_t kCounted = 4 * kThreads / kWarp;

// Of counts below 2^21, one above the other.
constexpr int kCountBits = 21;
__device__ inline uint64_t Counts(uint32_t bytes, uint32_t halves, uint32_t wholes) {
  return bytes | static_cast<uint64_t>(halves) << kCountBits |
         static_cast<uint64_t>(wholes) << (2 * kCountBits);
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

// Of an ErrorBound: the least biased exponents of the classes, without a shift.
struct LeastExponents {
  int32_t byte, half, whole, largest_shift;

  explicit LeastExponents(ErrorBound bound)
      : byte(bound.LeastByte()),
        half(bound.LeastHalf()),
        whole(bound.LeastWhole()),
        largest_shift(bound.LargestShift()) {}
};

// As ClassEdges.
struct DeviceEdges {
  int32_t byte, half, whole;

  __device__ DeviceEdges(const LeastExponents& least, int32_t shift)
      : byte(least.byte + shift), half(least.half + shift), whole(least.whole + shift) {}
  __device__ static float Power(int32_t exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  }
  __device__ float ByteUnit() const { return Power(half - 7); }
  __device__ float HalfUnit() const { return Power(whole - 15 < 254 ? whole - 15 : 254); }
  __device__ float BytesIn() const { return Power(261 - half); }
  __device__ float HalvesIn() const { return Power(269 - whole > 1 ? 269 - whole : 1); }
};

// The lanes before this one, as a mask.
__device__ inline uint32_t LanesBelow() { return (1u << Lane()) - 1; }

}  // namespace grace
