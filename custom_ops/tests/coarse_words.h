// The coarse words of philox.h, one by one.
#pragma once

#include "kernels/base/philox.h"
#include "testing.h"

namespace grace {

inline std::vector<uint32_t> CoarseWords(const PhiloxKey& key, int64_t n) {
  std::vector<uint32_t> words(16 * CeilDiv(n, 32)), coarse(n);
  RandomWords(Serial(), key, words.size(), words.data());
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = words[16 * (i / 32) + i % 16];
    coarse[i] = (i % 32 < 16 ? word << 16 : word & 0xffff0000u) | 0x8000;
  }
  return coarse;
}

// The numbers in [0, 1) of these words.
inline std::vector<float> CoarseUniform(const PhiloxKey& key, int64_t n) {
  std::vector<float> numbers;
  for (const uint32_t word : CoarseWords(key, n)) {
    numbers.push_back(static_cast<float>(word >> 8) * 0x1p-24f);
  }
  return numbers;
}

}  // namespace grace
