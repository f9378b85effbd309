#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "coarse_words.h"
#include "kernels/quantize/scales.h"
#include "lists_of_one.h"
#include "testing.h"

namespace grace {

const PhiloxKey kKey{11, 2, 3, 0x405};

int32_t Code(float x, float scale, int32_t levels, bool stochastic, float u) {
  const float s = float(levels);
  const volatile float inverse = scale < 0x1p-110f ? 0.0f : s / scale;
  const volatile float a = (std::fabs(x) < 0x1p-126f ? 0.0f : std::fabs(x)) * inverse;
  const volatile float sum = a + u;
  const float q = std::min(stochastic ? std::floor(sum) : std::nearbyint(a), s);
  return x >= 0 ? levels + int32_t(q) : levels - int32_t(q);
}

int32_t CodeAt(const uint32_t* words, int32_t bits, int64_t i) {
  int32_t code = 0;
  for (int32_t p = 0; p < bits; ++p) {
    code |= int32_t(words[i / 32 * bits + p] >> (i % 32) & 1) << p;
  }
  return code;
}

void Check(const Executor& executor, const std::vector<float>& x, Quantization quantization,
           bool stochastic) {
  const int64_t n = x.size(), blocks = CeilDiv(n, quantization.block);
  const int32_t levels = quantization.levels, bits = quantization.bits;
  std::vector<float> scales(blocks), u = CoarseUniform(kKey, n);
  BlockScales(Serial(), x.data(), n, quantization.block, Norm::kMax, scales.data());
  if (levels > 127) Uniform(Serial(), kKey, n, u.data());
  Guarded<uint32_t> words(PackedWords(n, bits));
  Quantize(executor, x.data(), scales.data(), n, quantization, stochastic ? &kKey : nullptr,
           words.data());
  Guarded<float> back(n), sum(n);
  DequantizeSum(executor, words.data(), scales.data(), 1, n, quantization, back.data());
  // Two workers that sent the same.
  std::vector<uint32_t> twice(words.data(), words.data() + PackedWords(n, bits));
  twice.insert(twice.end(), twice.begin(), twice.begin() + PackedWords(n, bits));
  std::vector<float> both = scales;
  both.insert(both.end(), scales.begin(), scales.end());
  DequantizeSum(executor, twice.data(), both.data(), 2, n, quantization, sum.data());
  bool same = words.Intact() && back.Intact() && sum.Intact();
  for (int64_t i = 0; i < n; ++i) {
    const float scale = scales[i / quantization.block];
    const int32_t code = CodeAt(words.data(), bits, i);
    const float unit = scale < 0x1p-110f ? 0.0f : scale / float(levels);
    const float value = float(code - levels) * unit;
    same &= code == Code(x[i], scale, levels, stochastic, u[i]);
    same &= BitsOf(back[i]) == BitsOf(value);
    same &= BitsOf(sum[i]) == BitsOf(Flush(Flush(0.0f + value) + value));
  }
  for (int64_t i = n; i < CeilDiv(n, 32) * 32; ++i) same &= CodeAt(words.data(), bits, i) == 0;
  EXPECT(same, "n = %ld, levels %d in %d bits, blocks of %ld, stochastic %d", long(n), levels, bits,
         long(quantization.block), stochastic);
}

void TestCodes() {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = Gradient(n);
    OnEveryIsa([&](const Executor& executor) {
      for (const int64_t block : {int64_t{100}, int64_t{512}, n}) {
        Check(executor, x, {7, 4, block}, true);
        if (n > 2000) continue;
        Check(executor, x, {7, 4, block}, false);
        Check(executor, x, {1, 2, block}, true);
        Check(executor, x, {127, 8, block}, false);
        Check(executor, x, {127, 8, block}, true);
        Check(executor, x, {128, 9, block}, true);
        Check(executor, x, {300, 10, block}, true);
        Check(executor, x, {32767, 16, block}, true);
      }
    });
  }
}

// Whatever arrives, nothing is read or written outside, and no conversion overflows.
void TestAnyBits() {
  std::mt19937 random(5);
  const int64_t n = 1001;
  std::vector<float> x(n), scales(11);
  for (float& value : x) value = FloatOf(random());
  for (float& value : scales) value = FloatOf(random());
  for (const auto& [levels, bits] : {std::pair{1, 2}, {6, 4}, {127, 8}, {32767, 16}}) {
    const Quantization quantization{levels, bits, 100};
    std::vector<uint32_t> words(PackedWords(n, bits)), first;
    for (uint32_t& word : words) word = random();
    std::vector<float> decoded;
    OnEveryIsa([&](const Executor& executor) {
      Guarded<uint32_t> codes(words.size());
      Quantize(executor, x.data(), scales.data(), n, quantization, &kKey, codes.data());
      if (first.empty()) first.assign(codes.data(), codes.data() + words.size());
      EXPECT(codes.Intact() && codes.Equals(first), "%d bits", bits);
      Guarded<float> out(n);
      DequantizeSum(executor, words.data(), scales.data(), 1, n, quantization, out.data());
      EXPECT(out.Intact(), "%d bits", bits);
    });
  }
}

void TestScales() {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = Gradient(n);
    for (const int64_t block : {int64_t{1}, int64_t{63}, int64_t{512}, int64_t{70000}, n + 3}) {
      if (block == 1 && n > 2000) continue;
      std::vector<float> l2, largest;
      for (int64_t b = 0; b < CeilDiv(n, block); ++b) {
        const int64_t end = std::min(n, (b + 1) * block);
        std::vector<double> s;
        float most = 0;
        for (int64_t i = b * block; i < end; ++i) {
          s.push_back(double(Flush(x[i])) * double(Flush(x[i])));
          most = std::max(most, std::fabs(x[i]));
        }
        while (s.size() > 1) {
          if (s.size() % 2) s.push_back(0);
          for (size_t i = 0; i < s.size() / 2; ++i) s[i] = s[2 * i] + s[2 * i + 1];
          s.resize(s.size() / 2);
        }
        const double root = std::sqrt(s[0]);
        l2.push_back(root < 0x1p-110 ? 0.0f : float(root));
        largest.push_back(most < 0x1p-110f ? 0.0f : most);
      }
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> scales(l2.size());
        BlockScales(executor, x.data(), n, block, Norm::kL2, scales.data());
        EXPECT(scales.Equals(l2) && scales.Intact(), "l2, n = %ld, %ld", long(n), long(block));
        BlockScales(executor, x.data(), n, block, Norm::kMax, scales.data());
        EXPECT(scales.Equals(largest) && scales.Intact(), "max, n = %ld, %ld", long(n),
               long(block));
      });
    }
  }
}

}  // namespace grace

int main() {
  grace::TestScales();
  grace::TestCodes();
  grace::TestAnyBits();
  return grace::Finish("quantize");
}
