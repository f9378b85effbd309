// The CUDA that device code is written in: by nvcc, or emulated on the processor.
//
// A .cu file includes no other CUDA header. Compiled by nvcc it becomes part of libgrace_cuda.so;
// compiled by the C++ compiler with GRACE_EMULATE_CUDA its kernels run on the processor, see
// emulation.h, so that tests compare them with the kernels of the .cc files where there is no GPU.
#pragma once

#ifdef GRACE_EMULATE_CUDA
#include "kernels/base/device/emulation.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>

#include "kernels/base/words.h"

// What the library exports.
#define GRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace grace {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
// The threads of a block, which together take kChunk elements.
//
// A kernel whose launch bounds name blocks too may use the registers that this number of blocks
// leaves it. Without that number ptxas chooses by itself, and spills a few on some architectures:
// `make cuda` tells.
constexpr int kThreads = 256;
constexpr int kEach = static_cast<int>(kChunk) / kThreads;

// For launch bounds: the number of thread blocks that a multiprocessor holds at the same time. More
// blocks leave fewer registers for each thread. On sm_75, sm_120 and sm_121 `usual` blocks leave so
// few registers that ptxas of CUDA 13.0 moves values to memory. There the number is `fewer`. A
// kernel that needs more registers on other new architectures names the first, as 100 for sm_100.
constexpr int BlocksAtOnce(int usual, int fewer, int fewer_from = 120) {
#ifdef __CUDA_ARCH__
  return __CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 10 * fewer_from ? fewer : usual;
#else
  static_cast<void>(fewer);
  static_cast<void>(fewer_from);
  return usual;
#endif
}

__device__ inline int Lane() { return threadIdx.x % kWarp; }
__device__ inline int WarpOf() { return threadIdx.x / kWarp; }
// The lanes before this one, as a mask.
__device__ inline uint32_t LanesBefore() { return (1u << Lane()) - 1; }

__device__ inline bool IsFinite(float x) { return (__float_as_uint(x) & kInfinity) != kInfinity; }

// x, or zero of its sign where x is denormal.
__device__ inline float SignedFlush(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & kMagnitude) < kSmallestNormal ? __uint_as_float(bits & kSignBit) : x;
}

// x, or +0 where x is denormal or -0, as Flush.
__device__ inline float PlainFlush(float x) {
  return (__float_as_uint(x) & kMagnitude) < kSmallestNormal ? 0.0f : x;
}

// x >= 0: true for zero of either sign, false for NaN.
__device__ inline bool NotNegativeBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits <= kInfinity || bits == kSignBit;
}

// Sum, difference and product on a processor that treats denormals as zeros of their sign, given
// and arising, which the other kernels call DenormalsAreZero. A GPU has an instruction for each.
// No sum needs rounding where it is denormal, so theirs are an x86 processor's.
#ifdef __CUDA_ARCH__
__device__ inline float AddZ(float a, float b) {
  float sum;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
__device__ inline float SubZ(float a, float b) {
  float difference;
  asm("sub.rn.ftz.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));
  return difference;
}
// The product where its magnitude is above 2^-126, and else one that is not above.
__device__ inline float LargeProduct(float a, float b) {
  float product;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}
#else
// The result of a GPU's instruction: denormals become zeros, and it has only one NaN.
__device__ inline float Result(float x) {
  return x == x ? SignedFlush(x) : __uint_as_float(kMagnitude);
}
__device__ inline float AddZ(float a, float b) { return Result(SignedFlush(a) + SignedFlush(b)); }
__device__ inline float SubZ(float a, float b) { return Result(SignedFlush(a) - SignedFlush(b)); }
__device__ inline float LargeProduct(float a, float b) {
  const float product = SignedFlush(a) * SignedFlush(b);
  return product == product ? product : Result(product);
}
#endif

// The product of a and b, whose magnitude is at most 2^-126 once rounded. An x86 processor takes it
// for denormal where it is below 2^-126 after rounding to 24 bits; a denormal has fewer bits, so
// rounding to one would tell too late. Here it is 2^64 times as large while it is rounded.
__device__ inline float SmallProduct(float a, float b) {
  const bool swap = fabsf(a) > fabsf(b);
  const float large = swap ? a : b, small = (swap ? b : a) * 0x1p64f;
  const float product = small * large;
  const uint32_t sign = __float_as_uint(product) & kSignBit;
  return __uint_as_float(sign | (fabsf(product) < 0x1p-62f ? 0 : kSmallestNormal));
}
__device__ inline float MulZ(float a, float b) {
  const float product = LargeProduct(a, b);
  const bool small = (__float_as_uint(product) & kMagnitude) <= kSmallestNormal;
  return small ? SmallProduct(SignedFlush(a), SignedFlush(b)) : product;
}

// products[j] = MulZ(a[j], b[j]) for each j below kCount. All products are taken before the thread
// branches, so they must not lie where a or b does. Calls of MulZ in a row would be slower: each of
// them branches, so the thread would wait for the operands of one product before it reads those of
// the next.
template <int kCount>
__device__ inline void MulEachZ(const float* a, const float* b, float* products) {
  bool small = false;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    products[j] = LargeProduct(a[j], b[j]);
    small |= (__float_as_uint(products[j]) & kMagnitude) <= kSmallestNormal;
  }
  if (!small) return;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const bool own = (__float_as_uint(products[j]) & kMagnitude) <= kSmallestNormal;
    // A product with zero is exact as it is.
    if (own && a[j] != 0.0f && b[j] != 0.0f) products[j] = MulZ(a[j], b[j]);
  }
}

}  // namespace grace
