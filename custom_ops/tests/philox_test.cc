#include "kernels/base/philox.h"

#include "kernels/base/philox_blocks.h"
#include "testing.h"

#define GRACE_KERNEL "kernels/base/random_words-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

// One block, step by step as in the paper.
std::vector<uint32_t> Block(const PhiloxKey& key, uint64_t index) {
  uint32_t k0 = key.seed, k1 = key.worker;
  uint32_t c[4] = {uint32_t(index), uint32_t(index >> 32), key.step, key.variable_draw};
  for (int round = 0; round < 10; ++round) {
    const uint64_t m0 = uint64_t(0xD2511F53u) * c[0], m1 = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t next[4] = {uint32_t(m1 >> 32) ^ c[1] ^ k0, uint32_t(m1),
                              uint32_t(m0 >> 32) ^ c[3] ^ k1, uint32_t(m0)};
    std::memcpy(c, next, sizeof c);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c, c + 4};
}

void TestKnownVector() {
  OnEveryIsa([](const Executor& executor) {
    Guarded<uint32_t> words(4);
    RandomWords(executor, {0, 0, 0, 0}, 4, words.data());
    EXPECT(words.Equals({0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), "zero key");
    const std::vector<uint32_t> pi =
        Block({0xa4093822, 0x299f31d0, 0x13198a2e, 0x03707344}, 0x85a308d3243f6a88);
    EXPECT(pi == (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), "pi");
  });
}

void TestStream() {
  const PhiloxKey key{7, 0xffffffffu, 0xfffffff0u, 0xabcdef12u};
  for (const int64_t n : Lengths()) {
    std::vector<uint32_t> wanted;
    for (int64_t i = 0; i < CeilDiv(n, 4); ++i) {
      for (const uint32_t word : Block(key, i)) wanted.push_back(word);
    }
    wanted.resize(n);
    OnEveryIsa([&](const Executor& executor) {
      Guarded<uint32_t> words(n);
      RandomWords(executor, key, n, words.data());
      EXPECT(words.Equals(wanted) && words.Intact(), "n = %ld", long(n));
      Guarded<float> values(n);
      Uniform(executor, key, n, values.data());
      bool same = values.Intact();
      for (int64_t i = 0; i < n; ++i) same &= values[i] == float(wanted[i] >> 8) / 16777216.0f;
      EXPECT(same, "uniform, n = %ld", long(n));
    });
  }
}

// Batches before, over and after the place where the upper word of the counter changes.
void TestUpperCounterWord() {
  const PhiloxKey key{7, 8, 9, 10};
  const PhiloxSchedule schedule(key);
  const uint64_t first = 0x2ffffffffu - 43;
  std::vector<uint32_t> wanted;
  for (uint64_t i = first; i < first + 3 * kBatchBlocks; ++i) {
    for (const uint32_t word : Block(key, i)) wanted.push_back(word);
  }
  OnEveryIsa([&](const Executor&) {
    Guarded<uint32_t> words(3 * kBatch);
    GRACE_CHOOSE(RandomBatches)(schedule, first, 3, words.data());
    EXPECT(words.Equals(wanted) && words.Intact(), "three batches");
  });
}

}  // namespace grace

int main() {
  grace::TestKnownVector();
  grace::TestUpperCounterWord();
  grace::TestStream();
  return grace::Finish("philox");
}
