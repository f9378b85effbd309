// Guesses the bound of a selection from a sample of the elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/base/words.h"

namespace grace {

// The elements of a run are neighbours in memory, which share a cache line.
constexpr int64_t kRun = 4;

// The key that this fraction of the sampled keys reaches, with a margin: in one of a thousand
// tensors fewer reach it than wanted, and a second look finds them. It is at least 1: where most
// elements are 0, those that are not may be enough.
inline uint32_t RankedKey(std::vector<uint32_t>& keys, double fraction) {
  const int64_t samples = keys.size();
  const double expected = static_cast<double>(samples) * fraction;
  const int64_t rank =
      std::min<int64_t>(samples - 1, static_cast<int64_t>(expected + 3 * std::sqrt(expected) + 2));
  std::nth_element(keys.begin(), keys.begin() + rank, keys.end(), std::greater<uint32_t>());
  return std::max<uint32_t>(keys[rank], 1);
}

// A key that a little more than k of the keys of acc[0, n) reach, by a sample; 0 where the sample
// gives none.
// compute(at, acc) gives acc[at, at + kRun) from the arrays, each of n floats or null.
template <class Compute>
uint32_t SampledKey(int64_t n, int64_t k, std::initializer_list<const float*> arrays,
                    const Compute& compute) {
  if (k > n / 4) return 0;
  const double fraction = static_cast<double>(k) / static_cast<double>(n);
  const int64_t wanted = std::min(static_cast<int64_t>(400 / fraction), n / 256);
  const int64_t runs = std::clamp<int64_t>(wanted, 1024, 1 << 16) / kRun;
  // With an even number of runs a row, an even step would come to some columns of a matrix only.
  const int64_t all = n / kRun, step = (all / runs) | 1;
  const auto place = [=](int64_t r) { return r * step % all * kRun; };
  // The runs lie in different pages of memory, so the processor cannot fetch the next one by
  // itself.
  constexpr int64_t kAhead = 16;
  const auto fetch = [&](int64_t r) {
    for (const float* array : arrays) {
      if (array) __builtin_prefetch(array + place(r));
    }
  };
  for (int64_t r = 0; r < kAhead; ++r) fetch(r);
  std::vector<uint32_t> keys(runs * kRun);
  for (int64_t r = 0; r < runs; ++r) {
    fetch(r + kAhead);
    float acc[kRun];
    compute(place(r), acc);
    for (int64_t j = 0; j < kRun; ++j) keys[r * kRun + j] = BitsOf(acc[j]) & kMagnitude;
  }
  return RankedKey(keys, fraction);
}

}  // namespace grace
