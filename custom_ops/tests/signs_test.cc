#include "kernels/signs/signs.h"

#include "lists_of_one.h"
#include "testing.h"

namespace grace {

std::vector<uint32_t> Packed(const std::vector<float>& x) {
  std::vector<uint32_t> words(PackedWords(x.size(), 1));
  for (size_t i = 0; i < x.size(); ++i) words[i / 32] |= uint32_t(x[i] >= 0) << (i % 32);
  return words;
}

void TestPackAndUnpack() {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = Gradient(n);
    const std::vector<uint32_t> wanted = Packed(x);
    OnEveryIsa([&](const Executor& executor) {
      Guarded<uint32_t> words(wanted.size());
      PackSigns(executor, x.data(), n, words.data());
      EXPECT(words.Equals(wanted) && words.Intact(), "n = %ld", long(n));
      Guarded<float> signs(n);
      VoteSigns(executor, words.data(), 1, n, signs.data());
      bool same = signs.Intact();
      for (int64_t i = 0; i < n; ++i) same &= signs[i] == (x[i] >= 0 ? 1.0f : -1.0f);
      EXPECT(same, "n = %ld", long(n));
    });
  }
}

void TestSpecialValues() {
  const uint32_t bits[] = {0,          0x80000000, 1,          0x80000001, 0x7f800000,
                           0xff800000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = FloatOf(bits[i % 10]);
  OnEveryIsa([&](const Executor& executor) {
    Guarded<uint32_t> words(2);
    PackSigns(executor, x.data(), 64, words.data());
    // Of the ten: +0, -0, a positive denormal and +infinity.
    for (int i = 0; i < 64; ++i) {
      const bool wanted = 0b0000010111 >> (i % 10) & 1;
      EXPECT((words[i / 32] >> (i % 32) & 1) == wanted, "value %x", bits[i % 10]);
    }
  });
}

void TestVote() {
  std::mt19937 random(1);
  for (const int64_t workers : {1, 2, 3, 4, 5, 8, 31, 64}) {
    for (const int64_t n : {1, 31, 32, 33, 2049, 70001}) {
      const int64_t row = PackedWords(n, 1);
      std::vector<uint32_t> words(workers * row);
      for (uint32_t& word : words) word = random();
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> votes(n);
        VoteSigns(executor, words.data(), workers, n, votes.data());
        bool same = votes.Intact();
        for (int64_t i = 0; i < n; ++i) {
          int sum = 0;
          for (int64_t w = 0; w < workers; ++w) {
            sum += words[w * row + i / 32] >> (i % 32) & 1 ? 1 : -1;
          }
          same &= BitsOf(votes[i]) == BitsOf(float((sum > 0) - (sum < 0)));
        }
        EXPECT(same, "%ld workers, n = %ld", long(workers), long(n));
      });
    }
  }
}

}  // namespace grace

int main() {
  grace::TestPackAndUnpack();
  grace::TestSpecialValues();
  grace::TestVote();
  return grace::Finish("signs");
}
