// The layout of packed words, and what floats look like as bits: one place for both.
//
// Codes of b bits are stored as bit planes: 32 consecutive elements make a group of b words; word p
// of the group holds bit p of the codes, that of element i in its bit i. Padding bits are zero.
#pragma once

#include <cstdint>
#include <cstring>

// A function that code for GPUs calls too.
#ifdef __CUDACC__
#define GRACE_BOTH __host__ __device__
#else
#define GRACE_BOTH
#endif

namespace grace {

constexpr int64_t kGroup = 32;
// Elements a thread takes at a time: few enough for its cache, enough to be worth waking it.
constexpr int64_t kGrain = 1 << 16;
// Elements that list kernels take at a time: few enough to stay in the first-level cache while they
// are read several times. A power of two, so that sums of squares over them are whole subtrees.
constexpr int64_t kChunk = 2048;

// Bytes of a cache line.
constexpr int64_t kLine = 64;

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kSmallestNormal = 0x00800000u;
constexpr float kSmallestScale = 0x1p-110f;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }
constexpr int64_t PackedWords(int64_t n, int64_t bits) { return bits * CeilDiv(n, kGroup); }

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

GRACE_BOTH inline float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// x, or +0 where x is denormal. An integer test does not depend on the processor's denormal mode.
inline float Flush(float x) { return (BitsOf(x) & kMagnitude) < kSmallestNormal ? 0.0f : x; }

// The mask of the first `count` elements of a group.
inline uint32_t GroupMask(int64_t count) {
  return count >= kGroup ? 0xffffffffu : (1u << count) - 1u;
}

}  // namespace grace
