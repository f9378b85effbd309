// CUDA on the processor, for tests: every thread of a block is a fiber of its own.
//
// Blocks run one after another. The threads of a block take turns at barriers and at exchanges
// within a warp, in an order that SetOrder chooses: a kernel that lacks a barrier gives other
// results in another order. Memory of the device is the host's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// As on the device, what is in shared memory before a block writes it is left from other blocks.
#define __shared__ static thread_local

using cudaStream_t = void*;
struct uint3 {
  unsigned x, y, z;
};
extern thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace grace::emulation {

enum class Order { kForward, kBackward, kShuffled };
void SetOrder(Order order);

// Runs body once for each thread of each block.
void Run(int64_t blocks, int threads, const std::function<void()>& body);

// Waits for the threads of the block, or for those of this warp.
void BlockBarrier();
void WarpBarrier();
// Gives the lanes of this warp each other's values: a table of 32.
const uint64_t* Exchange(uint64_t value);

template <class T>
uint64_t ToSlot(T value) {
  uint64_t slot = 0;
  std::memcpy(&slot, &value, sizeof value);
  return slot;
}
template <class T>
T FromSlot(uint64_t slot) {
  T value;
  std::memcpy(&value, &slot, sizeof value);
  return value;
}

}  // namespace grace::emulation

inline void __syncthreads() { grace::emulation::BlockBarrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { grace::emulation::WarpBarrier(); }
inline void __threadfence() {}

inline unsigned __ballot_sync(unsigned, bool holds) {
  const uint64_t* slots = grace::emulation::Exchange(holds);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) ballot |= static_cast<unsigned>(slots[lane]) << lane;
  return ballot;
}
inline bool __any_sync(unsigned mask, bool holds) { return __ballot_sync(mask, holds) != 0; }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  using namespace grace::emulation;
  return FromSlot<T>(Exchange(ToSlot(value))[lane % 32]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ lanes);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int lanes) {
  const int own = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, own + lanes < 32 ? own + lanes : own);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int lanes) {
  const int own = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, own >= lanes ? own - lanes : own);
}

template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
template <class T>
T atomicOr(T* to, T value) {
  const T before = *to;
  *to |= value;
  return before;
}
template <class T>
T atomicMax(T* to, T value) {
  const T before = *to;
  if (before < value) *to = value;
  return before;
}
template <class T>
T atomicMin(T* to, T value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}

inline uint32_t __float_as_uint(float x) { return grace::emulation::ToSlot(x); }
inline float __uint_as_float(uint32_t bits) { return grace::emulation::FromSlot<float>(bits); }
inline int32_t __float_as_int(float x) { return static_cast<int32_t>(__float_as_uint(x)); }
inline float __int_as_float(int32_t bits) { return __uint_as_float(static_cast<uint32_t>(bits)); }
inline double __longlong_as_double(long long bits) {
  return grace::emulation::FromSlot<double>(static_cast<uint64_t>(bits));
}
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __popcll(uint64_t bits) { return __builtin_popcountll(bits); }
inline int __clz(uint32_t bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __ffs(int32_t bits) { return __builtin_ffs(bits); }
inline uint32_t __brev(uint32_t bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1u) << (31 - i);
  return reversed;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
