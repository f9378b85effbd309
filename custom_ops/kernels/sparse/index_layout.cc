#include "kernels/base/words.h"
#include "kernels/sparse/index_sets.h"

namespace grace {

IndexLayout::IndexLayout(int64_t n, int64_t k) : n(n), k(k), plain(false), low(0) {
  while (k << (low + 1) <= n) ++low;
  low_words = CeilDiv(k * low, 32);
  upper_bits = k + ((n - 1) >> low);
  words = low_words + CeilDiv(upper_bits, 32);
  if (CeilDiv(n, 32) > words) return;
  plain = true;
  low = 0;
  low_words = 0;
  upper_bits = n;
  words = CeilDiv(n, 32);
}

IndexLayouts::IndexLayouts(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks)
    : words(1, 0), entries(1, 0), lengths(lengths), ks(ks) {
  for (size_t i = 0; i < ks.size(); ++i) {
    each.emplace_back(lengths[i], ks[i]);
    words.push_back(words.back() + each.back().words);
    entries.push_back(entries.back() + ks[i]);
  }
}

}  // namespace grace
