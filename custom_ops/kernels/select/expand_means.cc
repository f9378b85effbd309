#include "kernels/base/words.h"
#include "kernels/select/two_means.h"

namespace grace {

void ExpandMeans(const Executor& executor, const float* means, const uint32_t* signs,
                 int64_t workers, const std::vector<int64_t>& ks, float* values) {
  struct Part {
    const float* means;
    const uint32_t* signs;
    float* values;
    int64_t size;
  };
  std::vector<Part> parts;
  for (int64_t w = 0; w < workers; ++w) {
    for (const int64_t k : ks) {
      parts.push_back({means, signs, values, k});
      means += 2;
      signs += PackedWords(k, 1);
      values += k;
    }
  }
  executor.For(parts.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Part& part = parts[p];
      for (int64_t j = 0; j < part.size; ++j) {
        part.values[j] = part.means[part.signs[j >> 5] >> (j & 31) & 1 ? 0 : 1];
      }
    }
  });
}

}  // namespace grace
