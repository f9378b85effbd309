#include "case.h"

#include <numeric>

namespace grace {

int64_t Case::Length(int64_t least) {
  if (OneIn(3000)) {
    large_ = true;
    return kGrain + Below(kGrain);
  }
  const int64_t most = OneIn(200) ? 3 * kChunk : OneIn(8) ? 300 : 40;
  return least + Below(most);
}

std::vector<int64_t> Case::Lengths(int64_t least) {
  std::vector<int64_t> lengths(1 + (OneIn(2) ? Below(5) : 0));
  for (int64_t& n : lengths) n = Length(least);
  return lengths;
}

// Random bits, or those that stand out as a float or as an integer.
uint32_t Case::Word() {
  constexpr uint32_t special[] = {0,          1,          2,          0x7fffffff, 0x80000000,
                                  0x80000001, 0xffffffff, 0x7f800000, 0xff800000, 0x7f800001,
                                  0xffc00000, 0x7f7fffff, 0x00800000, 0x007fffff, 0x3f800000};
  return OneIn(3) ? special[Below(15)] : random_();
}

Guarded<uint32_t> Case::Words(int64_t n) {
  Guarded<uint32_t> words(n, Below(16));
  const int64_t kind = Below(4);
  for (int64_t i = 0; i < n; ++i) words[i] = kind == 0 ? 0 : kind == 1 ? Word() : random_();
  if (kind == 0) Flip(words, n);
  return words;
}

Guarded<float> Case::Floats(int64_t n) {
  Guarded<float> floats(n, Below(16));
  const int64_t kind = Below(4);
  for (int64_t i = 0; i < n; ++i) {
    floats[i] = kind == 0   ? FloatOf(random_())
                : kind == 1 ? Float()
                            : static_cast<float>(Below(1 << 20)) * 0x1p-18f - 2.0f;
  }
  if (kind == 2) Flip(floats, n);
  return floats;
}

Guarded<int32_t> Case::Counts(int64_t n, int64_t most) {
  Guarded<int32_t> counts(n, Below(16));
  for (int64_t i = 0; i < n; ++i) {
    counts[i] = static_cast<int32_t>(OneIn(4) ? Word() : Below(most + 3) - 1);
  }
  return counts;
}

Guarded<int32_t> Case::Indices(int64_t rows, const std::vector<int64_t>& lengths,
                               const std::vector<int64_t>& ks) {
  const int64_t size = rows * std::accumulate(ks.begin(), ks.end(), int64_t{0});
  Guarded<int32_t> indices(size, Below(16));
  const bool any = OneIn(8);
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < ks.size(); ++i) {
      // So far apart that they stay inside, if as many fit.
      const int64_t apart = std::max<int64_t>(1, lengths[i] / std::max<int64_t>(1, ks[i]));
      for (int64_t j = 0; j < ks[i]; ++j, ++at) {
        indices[at] = static_cast<int32_t>(any ? Word() : j * apart + Below(apart));
      }
    }
  }
  if (size && OneIn(3)) Flip(indices, size);
  if (size && OneIn(4)) indices[Below(size)] = indices[Below(size)];
  if (size && OneIn(4)) indices[Below(size)] = static_cast<int32_t>(Word());
  if (size && OneIn(4)) indices[Below(size)] = static_cast<int32_t>(lengths[0]);
  return indices;
}

// Where there is one alone, it runs twice, so that there is something to compare.
std::vector<const char*> Case::Isas() {
  std::vector<const char*> isas;
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (SetIsa(isa)) isas.push_back(isa);
  }
  if (isas.size() == 1) isas.push_back(isas[0]);
  return isas;
}

Results Totals(bool finite, const Outputs& outputs) {
  bool all = true;
  Results results;
  for (size_t i = 0; i < outputs.each.size(); ++i) {
    const int64_t n = outputs.targets[i].n;
    results.Take("a total", outputs.each[i], n);
    for (int64_t j = 0; j < n; ++j) all &= std::isfinite(outputs.each[i].data()[j]);
  }
  EXPECT(finite == all, "the flag is %d", finite);
  results.Take("the flag", finite);
  return results;
}

}  // namespace grace
