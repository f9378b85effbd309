#include "kernels/quantize/narrow.h"

#include "coarse_words.h"

namespace grace {

uint16_t Rounded(float x, uint32_t random) {
  const uint32_t bits = BitsOf(x), rounded = bits + (random >> 16);
  return ((rounded & 0x7fffffff) < 0x7f800000 ? rounded : bits) >> 16;
}

void TestHalves() {
  const PhiloxKey key{7, 3, 11, 0};
  const std::vector<int64_t> lengths = {1, 7, 31, 127, 128, 129, 1000, 70001, 3};
  std::vector<std::vector<float>> xs;
  std::vector<std::vector<uint16_t>> wanted;
  for (const int64_t n : lengths) {
    xs.push_back(Gradient(n));
    // Denormals, zeros, the largest numbers.
    const uint32_t corners[] = {0, 0x80000000, 1, 0x80000001, 0x7f7fffff, 0xff7fffff, 0x7f7f0001};
    for (int64_t i = 0; i < n && n > 100; ++i) {
      if (i % 5 == 0) xs.back()[i] = FloatOf(corners[i / 5 % 7]);
    }
    PhiloxKey own = key;
    own.variable_draw = static_cast<uint32_t>(xs.size() << 8 | 255);
    const std::vector<uint32_t> words = CoarseWords(own, n);
    wanted.emplace_back();
    for (int64_t i = 0; i < n; ++i) wanted.back().push_back(Rounded(xs.back()[i], words[i]));
  }
  OnEveryIsa([&](const Executor& executor) {
    std::vector<Guarded<uint16_t>> halves;
    std::vector<Guarded<float>> floats;
    std::vector<Narrowed> narrowed;
    std::vector<Widened> widened;
    for (size_t i = 0; i < xs.size(); ++i) {
      const int64_t n = lengths[i];
      halves.emplace_back(n, i % 2);
      floats.emplace_back(n, i % 3);
      narrowed.push_back({xs[i].data(), halves[i].data(), n, uint32_t((i + 1) << 8 | 255)});
      widened.push_back({halves[i].data(), floats[i].data(), n});
    }
    ToHalvesList(executor, narrowed, key);
    FromHalvesList(executor, widened);
    for (size_t i = 0; i < xs.size(); ++i) {
      EXPECT(halves[i].Equals(wanted[i]) && halves[i].Intact(), "tensor %zu", i);
      bool same = floats[i].Intact();
      for (int64_t j = 0; j < lengths[i]; ++j) {
        same &= BitsOf(floats[i][j]) == uint32_t(wanted[i][j]) << 16;
      }
      EXPECT(same, "tensor %zu", i);
    }
  });
}

}  // namespace grace

int main() {
  grace::TestHalves();
  return grace::Finish("narrow");
}
