#include "kernels/base/strata.h"

#include <vector>

namespace grace {

uint32_t StratumOf(const PhiloxKey& key, int64_t worker, int64_t workers) {
  std::vector<uint32_t> words(workers);
  RandomWords(Serial(), key, workers, words.data());
  const int64_t own = worker % workers;
  uint64_t place = 0;
  for (int64_t w = 0; w < workers; ++w) {
    place += words[w] < words[own] || (words[w] == words[own] && w < own);
  }
  return static_cast<uint32_t>((place << 32) / workers);
}

}  // namespace grace
