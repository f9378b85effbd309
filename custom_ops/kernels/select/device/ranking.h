// The search for the key of a rank among many, exactly: three histograms, each of the keys that
// share the digits found so far.
#pragma once

#include "kernels/base/device/stretches.h"

namespace grace {

// A key has 31 bits: the digits are its upper 11, the next 10 and the last 10.
constexpr int kMostBins = 2048;
template <int kDigit>
struct Digit {
  static constexpr int kLow = kDigit == 0 ? 20 : kDigit == 1 ? 10 : 0;
  static constexpr int kBits = kDigit == 0 ? 11 : 10;
  static constexpr int kBins = 1 << kBits;
  static constexpr int kFirst = kDigit == 0 ? 0 : kDigit == 1 ? 2048 : 3072;  // in Ranking::bins
};

// The state of the search for one rank. All of it begins at 0.
struct Ranking {
  uint32_t bins[4096];
  uint32_t prefix;  // the digits found so far; in the end the key
  uint32_t left;    // the rank among the keys that begin with them; in the end: among equal ones
};

// Makes a block's own bins 0; a barrier must follow.
__device__ inline void ClearBins(uint32_t* bins) {
  for (int i = threadIdx.x; i < kMostBins; i += kThreads) bins[i] = 0;
}

// Counts a key that begins with the prefix. A search that ends in no other bin ends in the lowest
// one, so that bin needs no count; most zeros of gradients would be in it.
template <int kDigit>
__device__ void CountKey(uint32_t key, uint32_t prefix, uint32_t* bins) {
  using Own = Digit<kDigit>;
  const uint32_t bin = key >> Own::kLow & (Own::kBins - 1);
  if (key >> (Own::kLow + Own::kBits) == prefix && bin != 0) atomicAdd(bins + bin, 1u);
}

// Adds a block's own bins to those of all blocks.
template <int kDigit>
__device__ void MergeBins(const uint32_t* bins, Ranking* ranking) {
  __syncthreads();
  for (int i = threadIdx.x; i < Digit<kDigit>::kBins; i += kThreads) {
    if (bins[i]) atomicAdd(ranking->bins + Digit<kDigit>::kFirst + i, bins[i]);
  }
}

// Finds the next digit of the key with this rank, 1 being the largest key's, by one block. After it
// every thread sees the digit.
template <int kDigit>
__device__ void FindDigit(uint32_t rank, Ranking* ranking) {
  using Own = Digit<kDigit>;
  constexpr int kOwn = Own::kBins / kThreads;
  // A thread has kOwn bins, the first thread the highest ones.
  const int highest = Own::kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
  uint32_t counts[kOwn], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    counts[i] = __ldcg(ranking->bins + Own::kFirst + highest - i);
    sum += counts[i];
  }
  const uint32_t prefix = ranking->prefix;
  uint32_t above = SumBefore(sum, &total);
  __syncthreads();
  if (above < rank && above + sum >= rank) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (!found && above + counts[i] >= rank) {
        found = true;
        ranking->prefix = prefix << Own::kBits | static_cast<uint32_t>(highest - i);
        ranking->left = rank - above;
      }
      above += counts[i];
    }
  }
  if (threadIdx.x == 0 && total < rank) {
    ranking->prefix = prefix << Own::kBits;
    ranking->left = rank - total;
  }
  __syncthreads();
}

}  // namespace grace
