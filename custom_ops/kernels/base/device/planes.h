// Codes as bit planes on the device: the layout of words.h.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"

namespace grace {

// The most bits of a code.
constexpr int kMostBits = 16;

// How many of this warp's groups the first n elements of a piece reach into.
__device__ inline int32_t GroupsOfWarp(int64_t n) {
  const auto groups = static_cast<int32_t>((n + kGroup - 1) / kGroup) - WarpOf() * kEach;
  return groups < 0 ? 0 : groups < kEach ? groups : kEach;
}

// Writes the codes of the first n elements of a piece, whose words begin at `words`; those of
// elements from n on must be 0. All lanes of a warp must call it.
__device__ inline void StorePlanes(const uint32_t* codes, int32_t bits, int64_t n,
                                   uint32_t* words) {
  __shared__ uint32_t planes[kThreads / kWarp][kEach * kMostBits];
  uint32_t* const own = planes[WarpOf()];
  for (int32_t p = 0; p < bits; ++p) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t plane = __ballot_sync(kAllLanes, codes[j] >> p & 1);
      if (Lane() == j) word = plane;
    }
    if (Lane() < kEach) own[Lane() * bits + p] = word;
  }
  __syncwarp();
  const int32_t count = GroupsOfWarp(n) * bits;
  words += static_cast<int64_t>(WarpOf()) * kEach * bits;
  for (int32_t i = Lane(); i < count; i += kWarp) words[i] = own[i];
}

// Reads the codes that StorePlanes wrote. Codes of groups beyond the n-th element are 0. All lanes
// of a warp must call it: together they copy the warp's words to shared memory, and then each lane
// takes its bits from there.
__device__ inline void LoadPlanes(const uint32_t* words, int32_t bits, int64_t n, uint32_t* codes) {
  __shared__ uint32_t planes[kThreads / kWarp][kEach * kMostBits];
  uint32_t* const own = planes[WarpOf()];
  const int32_t count = GroupsOfWarp(n) * bits;
  words += static_cast<int64_t>(WarpOf()) * kEach * bits;
  __syncwarp();
  for (int32_t i = Lane(); i < kEach * bits; i += kWarp) own[i] = i < count ? words[i] : 0;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kEach; ++j) codes[j] = 0;
#pragma unroll 1  // an unrolled loop would need too many registers
  for (int32_t p = bits - 1; p >= 0; --p) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      codes[j] = codes[j] << 1 | (own[j * bits + p] >> Lane() & 1);
    }
  }
}

}  // namespace grace
