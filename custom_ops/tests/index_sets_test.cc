// Sets of indices: what is packed comes back, any words decode without touching anything else, and
// sets are scattered as their indices are.
#include "kernels/sparse/index_sets.h"

#include <numeric>

#include "garbage.h"

namespace grace {

const std::vector<int64_t> kLengths = {1, 2, 31, 32, 33, 64, 257, 4096, 4096, 70001, 300007};
const std::vector<int64_t> kCounts = {1, 1, 1, 32, 5, 16, 2, 1024, 1025, 997, 3000};

// k of the numbers below n, ascending; the last ones for an odd tensor of the first seed.
std::vector<int32_t> Set(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> set;
  for (int64_t i = 0; i < n && int64_t(set.size()) < k; ++i) {
    const int64_t left = n - i, wanted = k - set.size();
    if (seed == 0 ? left == wanted : int64_t(random() % left) < wanted) set.push_back(int32_t(i));
  }
  return set;
}

// What words mean, bit by bit.
std::vector<int32_t> Decoded(const IndexLayout& layout, const uint32_t* words) {
  const auto bit = [words](int64_t i) { return words[i / 32] >> (i % 32) & 1; };
  std::vector<int32_t> entries;
  for (int64_t p = 0; p < layout.upper_bits && int64_t(entries.size()) < layout.k; ++p) {
    if (!bit(32 * layout.low_words + p)) continue;
    const int64_t rank = entries.size();
    int64_t low = 0;
    for (int b = 0; b < layout.low; ++b) low |= int64_t{bit(rank * layout.low + b)} << b;
    const int64_t index = layout.plain ? p : (p - rank) << layout.low | low;
    entries.push_back(int32_t(std::min(index, layout.n)));
  }
  entries.resize(layout.k, int32_t(layout.n));
  return entries;
}

void TestRoundTrip(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks) {
  const IndexLayouts layouts(lengths, ks);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    std::vector<int32_t> all, used;
    std::vector<int32_t> counts;
    for (size_t i = 0; i < ks.size(); ++i) {
      const std::vector<int32_t> set = Set(lengths[i], ks[i], seed);
      all.insert(all.end(), set.begin(), set.end());
      counts.push_back(int32_t(ks[i] * seed / 3) - (seed == 0));
      for (int64_t j = 0; j < ks[i]; ++j) {
        used.push_back(j < counts[i] ? set[j] : int32_t(lengths[i]));
      }
    }
    const Guarded<int32_t> indices(all, seed);
    OnEveryIsa([&](const Executor& executor) {
      for (const bool counted : {false, true}) {
        Guarded<uint32_t> words(layouts.words.back(), seed % 3);
        Guarded<int32_t> back(layouts.entries.back());
        const std::string fault = PackIndexList(executor, layouts, indices.data(),
                                                counted ? counts.data() : nullptr, words.data());
        UnpackIndexList(executor, layouts, words.data(), 1, back.data());
        EXPECT(fault.empty() && words.Intact() && back.Intact(), "%s", fault.c_str());
        EXPECT(back.Equals(counted ? used : all), "seed %d", int(seed));
      }
    });
  }
}

void TestGarbage() {
  const IndexLayouts layouts(kLengths, kCounts);
  const int64_t row = layouts.words.back();
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Guarded<uint32_t> words = Garbage<uint32_t>(2 * row, seed);
    // Few bits in some, so that entries lack theirs.
    for (int64_t i = 0; seed % 3 && i < 2 * row; ++i) words[i] &= words[(7 * i + seed) % (2 * row)];
    std::vector<int32_t> wanted;
    for (int64_t w = 0; w < 2; ++w) {
      for (size_t i = 0; i < kCounts.size(); ++i) {
        const auto own = Decoded(layouts.each[i], words.data() + w * row + layouts.words[i]);
        wanted.insert(wanted.end(), own.begin(), own.end());
      }
    }
    OnEveryIsa([&](const Executor& executor) {
      Guarded<int32_t> indices(2 * layouts.entries.back(), seed % 3);
      UnpackIndexList(executor, layouts, words.data(), 2, indices.data());
      EXPECT(indices.Equals(wanted) && indices.Intact(), "seed %d", int(seed));
    });
  }
}

// Random words in place of indices are refused, and nothing is written outside the outputs.
void TestFaults() {
  const IndexLayouts layouts(kLengths, kCounts);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Guarded<int32_t> indices = Garbage<int32_t>(layouts.entries.back(), seed);
    const Guarded<int32_t> counts = Garbage<int32_t>(kCounts.size(), seed);
    OnEveryIsa([&](const Executor& executor) {
      Guarded<uint32_t> words(layouts.words.back());
      EXPECT(!PackIndexList(executor, layouts, indices.data(), nullptr, words.data()).empty(),
             "seed %d", int(seed));
      PackIndexList(executor, layouts, indices.data(), counts.data(), words.data());
      EXPECT(words.Intact(), "seed %d", int(seed));
    });
  }
}

// ScatterSetList gives the results of UnpackIndexList followed by ScatterList, and reports the same
// faults.
void CheckScatter(const IndexLayouts& layouts, const Guarded<uint32_t>& words, uint32_t seed,
                  bool counted, int* faults) {
  constexpr int64_t kWorkers = 2;
  const int64_t size = kWorkers * layouts.entries.back(), tensors = layouts.ks.size();
  std::mt19937 random(seed);
  std::vector<float> values;
  for (int64_t j = 0; j < size; ++j) values.push_back(float(random() % 1000) - 500);
  std::vector<int32_t> counts, indices(size);
  for (int64_t j = 0; j < kWorkers * tensors; ++j) {
    counts.push_back(int32_t(random() % (layouts.ks[j % tensors] + 2)) - 1);
  }
  const int32_t* own = counted ? counts.data() : nullptr;
  std::vector<Guarded<float>> wanted, totals;
  std::vector<DecodeOutput> to, from;
  for (const int64_t n : layouts.lengths) {
    wanted.emplace_back(n);
    totals.emplace_back(n);
    to.push_back({wanted.back().data(), n});
    from.push_back({totals.back().data(), n});
  }
  UnpackIndexList(Serial(), layouts, words.data(), kWorkers, indices.data());
  bool finite = true;
  const std::string fault = ScatterList(
      Serial(), to, {values.data(), indices.data(), own, kWorkers, layouts.ks}, 0.5f, &finite);
  *faults += !fault.empty();
  OnEveryIsa([&](const Executor& executor) {
    const std::string found = ScatterSetList(
        executor, from, layouts, {values.data(), words.data(), own, kWorkers}, 0.5f, &finite);
    EXPECT(found == fault, "seed %d: %s, not %s", int(seed), found.c_str(), fault.c_str());
    for (int64_t i = 0; i < tensors; ++i) {
      EXPECT(totals[i].Intact(), "seed %d, tensor %d", int(seed), int(i));
      if (!fault.empty()) continue;
      const std::vector<float> total(wanted[i].data(), wanted[i].data() + layouts.lengths[i]);
      EXPECT(totals[i].Equals(total), "seed %d, tensor %d", int(seed), int(i));
    }
  });
}

void TestScatter() {
  // Entries with more low bits than a thread's piece has, too.
  std::vector<int64_t> lengths = kLengths, ks = kCounts;
  lengths.insert(lengths.end(), {300007, 200000});
  ks.insert(ks.end(), {2, 60000});
  const IndexLayouts layouts(lengths, ks);
  const int64_t row = layouts.words.back();
  int faults = 0;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    Guarded<uint32_t> words(2 * row, seed);
    for (int64_t w = 0; w < 2; ++w) {
      std::vector<int32_t> all;
      for (size_t i = 0; i < ks.size(); ++i) {
        const std::vector<int32_t> set = Set(lengths[i], ks[i], 2 * seed + w);
        all.insert(all.end(), set.begin(), set.end());
      }
      PackIndexList(Serial(), layouts, all.data(), nullptr, words.data() + w * row);
    }
    CheckScatter(layouts, words, seed, false, &faults);
    CheckScatter(layouts, words, seed, true, &faults);
    EXPECT(faults == 0, "seed %d", int(seed));
  }
  // First one bit of one tensor is wrong, then two bits, and so on.
  std::mt19937 random(1);
  Guarded<uint32_t> words(2 * row);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    if (seed % 6 == 0) {
      std::vector<int32_t> all;
      for (size_t i = 0; i < ks.size(); ++i) {
        const std::vector<int32_t> set = Set(lengths[i], ks[i], seed);
        all.insert(all.end(), set.begin(), set.end());
      }
      for (int64_t w = 0; w < 2; ++w) {
        PackIndexList(Serial(), layouts, all.data(), nullptr, words.data() + w * row);
      }
    }
    const int64_t i = random() % ks.size();
    const int64_t at = layouts.words[i] + random() % layouts.each[i].words;
    words[seed % 2 * row + at] ^= 1u << (random() % 32);
    CheckScatter(layouts, words, seed, seed % 3 == 0, &faults);
  }
  for (uint32_t seed = 0; seed < 6; ++seed) {
    CheckScatter(layouts, Garbage<uint32_t>(2 * row, seed), seed, seed % 2, &faults);
  }
  EXPECT(20 < faults && faults < 66, "%d faults", faults);
}

// Every worker's part of a list of one tensor is this set.
Guarded<uint32_t> SameSets(const IndexLayouts& layouts, const std::vector<int32_t>& set) {
  const int64_t row = layouts.words.back();
  Guarded<uint32_t> words(2 * row);
  for (int64_t w = 0; w < 2; ++w) {
    PackIndexList(Serial(), layouts, set.data(), nullptr, words.data() + w * row);
  }
  return words;
}

// Threads begin at so many places that some are at every position of a word.
void TestManyPieces() {
  const int64_t n = 16000000;
  int faults = 0;
  for (const int64_t k : {n / 5, n / 40}) {
    const IndexLayouts layouts({n}, {k});
    CheckScatter(layouts, SameSets(layouts, Set(n, k, 1)), 1, false, &faults);
  }
  EXPECT(faults == 0, "%d faults", faults);
}

// All entries have the same upper bits, and one of them is smaller than all others. Each place of
// that one is tried, since entries are read in blocks.
void TestOneEntryDescends() {
  const IndexLayouts layouts({1 << 20}, {700});
  std::vector<int32_t> set(700);
  std::iota(set.begin(), set.end(), 1);
  const int low = layouts.each[0].low;
  int faults = 0, wrong = 0;
  for (const int64_t entry : {1, 255, 256, 510, 511, 512, 513, 699}) {
    Guarded<uint32_t> words = SameSets(layouts, set);
    for (int64_t bit = entry * low; bit < (entry + 1) * low; ++bit) {
      words[bit / 32] &= ~(1u << bit % 32);
    }
    CheckScatter(layouts, words, 1, false, &faults);
    EXPECT(faults == ++wrong, "entry %d", int(entry));
  }
}

void TestLayouts() {
  for (const int64_t n : {1, 2, 3, 31, 32, 33, 100, 1000, 65536, INT32_MAX}) {
    for (int64_t k = 1; k <= n; k = k < 40 ? k + 1 : k * 3) {
      const IndexLayout layout(n, k);
      const int64_t plain = CeilDiv(n, 32);
      EXPECT(layout.words <= plain && layout.plain == (layout.words == plain), "%ld of %ld",
             long(k), long(n));
      EXPECT(layout.plain || (k << layout.low <= n && n < k << (layout.low + 1)), "%ld of %ld",
             long(k), long(n));
    }
  }
}

}  // namespace grace

int main() {
  grace::TestLayouts();
  grace::TestRoundTrip(grace::kLengths, grace::kCounts);
  // More entries than a thread takes at a time.
  grace::TestRoundTrip({7, 3000000, 1200000}, {2, 600000, 600000});
  grace::TestGarbage();
  grace::TestFaults();
  grace::TestScatter();
  grace::TestManyPieces();
  grace::TestOneEntryDescends();
  return grace::Finish("index sets");
}
