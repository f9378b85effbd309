// What the tests of the decoders share: random bits, and outputs to be compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sparse/scatter_list.h"
#include "testing.h"

namespace grace {

template <class T>
Guarded<T> Garbage(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Guarded<T> bits(n, seed % 3);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = random();
    std::memcpy(&bits[i], &word, sizeof(T));
  }
  return bits;
}

// Whether a and b have the same bits. Any two NaNs count as the same.
inline bool Same(float a, float b) { return BitsOf(a) == BitsOf(b) || (a != a && b != b); }

// x, or a zero of the same sign where x is denormal.
inline float SignedFlush(float x) {
  return (BitsOf(x) & kMagnitude) < kSmallestNormal ? FloatOf(BitsOf(x) & kSignBit) : x;
}

inline bool Finite(const std::vector<std::vector<float>>& totals) {
  for (const auto& total : totals) {
    for (const float x : total) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

// Outputs of a decoder, each after its own guard.
struct Outputs {
  explicit Outputs(const std::vector<int64_t>& lengths) {
    for (const int64_t n : lengths) {
      each.emplace_back(n, n % 5);
      targets.push_back({each.back().data(), n});
    }
  }
  bool Intact() const {
    return std::all_of(each.begin(), each.end(), [](const auto& own) { return own.Intact(); });
  }
  bool Are(const std::vector<std::vector<float>>& wanted) const {
    for (size_t i = 0; i < each.size(); ++i) {
      for (size_t j = 0; j < wanted[i].size(); ++j) {
        if (!Same(each[i].data()[j], wanted[i][j])) return false;
      }
    }
    return Intact();
  }

  std::vector<Guarded<float>> each;
  std::vector<DecodeOutput> targets;
};

const std::vector<std::vector<int64_t>> kLists = {
    {}, {0, 1}, {31, 32, 33, 0, 5, 513}, {2047, 4097, 1}, {70001, 3}};

}  // namespace grace
