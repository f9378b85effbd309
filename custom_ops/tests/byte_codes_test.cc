#include "kernels/codes/byte_codes.h"

#include <algorithm>
#include <cmath>

#include "coarse_words.h"
#include "garbage.h"

namespace grace {
namespace {

const std::vector<std::vector<int64_t>> kLengths = {
    {1, 2, 3, 5, 31, 32, 33, 129, 513}, {2047, 4097, 1}, {70001, 3}, {(1 << 21) + 41, 7}};

float TreeNumber(uint32_t code) {
  static const std::vector<float> numbers = [] {
    std::vector<float> all{0.0f};
    for (int k = 0; k < 7; ++k) {
      const double power = 1 << k, ten = std::pow(10.0, 7 - k);
      for (int c = 1 << k; c < 2 << k; ++c) {
        all.push_back(static_cast<float>(9 * (c + 1) - 8 * power) *
                      static_cast<float>(1 / (power * ten)));
      }
    }
    return all;
  }();
  return numbers[code];
}

float Sent(uint8_t code, float magnitude) { return 0.0f + (code & 0x80 ? -magnitude : magnitude); }

// A list of gradients of all sizes, and where what is left of them is kept.
struct List {
  explicit List(const std::vector<int64_t>& lengths) {
    for (const int64_t n : lengths) {
      xs.push_back(Gradient(n));
      std::mt19937 random(static_cast<uint32_t>(n));
      for (float& x : xs.back()) x = std::ldexp(x, -static_cast<int>(random() % 24));
      residuals.push_back(Gradient(n + 1));
      residual_out.emplace_back(n, n % 3);
      sources.push_back({xs.back().data(), residuals.back().data(), residual_out.back().data(), n});
      words += ByteWords(n);
    }
  }
  float Acc(size_t t, int64_t i) const {
    return SignedFlush(SignedFlush(xs[t][i]) + SignedFlush(residuals[t][i]));
  }

  std::vector<std::vector<float>> xs, residuals;
  std::vector<Guarded<float>> residual_out;
  std::vector<EncodeInput> sources;
  int64_t words = 0;
};

// Whether codes and what is kept fit: fits(acc, code, number, block) of each element, and
// number(code, block) is what a code stands for.
template <class Fits, class Number>
bool AllFit(List& list, const uint32_t* words, int64_t block, const Fits& fits,
            const Number& number) {
  int64_t at = 0, blocks = 0;
  for (size_t t = 0; t < list.sources.size(); ++t) {
    const int64_t n = list.sources[t].n, size = block ? block : n;
    const auto* bytes = reinterpret_cast<const uint8_t*>(words + at);
    if (!list.residual_out[t].Intact()) return false;
    for (int64_t i = 0; i < n; ++i) {
      const float acc = list.Acc(t, i), sent = number(bytes[i], blocks + i / size);
      if (!fits(t, i, acc, bytes[i], blocks + i / size)) return false;
      if (BitsOf(list.residual_out[t][i]) != BitsOf(SignedFlush(acc - sent))) return false;
    }
    for (int64_t i = n; i < 4 * ByteWords(n); ++i) {
      if (bytes[i]) return false;
    }
    at += ByteWords(n);
    blocks += CeilDiv(n, size);
  }
  return true;
}

void TestTree() {
  for (const auto& lengths : kLengths) {
    for (const int64_t block : {0, 32, 96, 512, 4096}) {
      if (block && lengths[0] > 100000) continue;
      int64_t blocks = 0;
      for (const int64_t n : lengths) blocks += block ? CeilDiv(n, block) : 1;
      OnEveryIsa([&](const Executor& executor) {
        List list(lengths);
        Guarded<uint32_t> words(list.words);
        Guarded<float> scales(blocks);
        const bool finite =
            EncodeTree(executor, list.sources, 1.0f, block, words.data(), scales.data());
        EXPECT(finite && words.Intact() && scales.Intact(), "block %ld", long(block));
        const auto fits = [&](size_t, int64_t, float acc, uint8_t code, int64_t b) {
          const uint32_t own = code & 0x7f;
          if (scales[b] == 0) return own == 0;
          const double a = std::fabs(acc) / static_cast<double>(scales[b]);
          // No neighbour is nearer, to rounding.
          const double error = std::fabs(a - TreeNumber(own)) * (1 - 1e-4) - 1e-7 * a;
          return (code >> 7) == BitsOf(acc) >> 31 && a <= 1 &&
                 (own == 0 || error <= a - TreeNumber(own - 1)) &&
                 (own == 127 || error <= TreeNumber(own + 1) - a);
        };
        const auto number = [&](uint8_t code, int64_t b) {
          return Sent(code, Flush(TreeNumber(code & 0x7f) * scales[b]));
        };
        EXPECT(AllFit(list, words.data(), block, fits, number), "block %ld", long(block));
      });
    }
  }
}

void TestPowers() {
  for (const auto& lengths : kLengths) {
    std::vector<PhiloxKey> keys;
    std::vector<std::vector<uint32_t>> random;
    for (const int64_t n : lengths) {
      keys.push_back({1, 2, 3, static_cast<uint32_t>(keys.size() << 8)});
      random.push_back(CoarseWords(keys.back(), n));
    }
    OnEveryIsa([&](const Executor& executor) {
      List list(lengths);
      Guarded<uint32_t> words(list.words);
      EXPECT(EncodePowers(executor, list.sources, 1.0f, keys, words.data()) && words.Intact(), " ");
      const auto fits = [&](size_t t, int64_t i, float acc, uint8_t code, int64_t) {
        const int exponent = ((BitsOf(acc) & kMagnitude) + (random[t][i] >> 9)) >> 23;
        const int wanted = std::min(std::max(exponent - 32, 0), 127);
        return code == (wanted | BitsOf(acc) >> 31 << 7);
      };
      const auto number = [&](uint8_t code, int64_t) {
        return Sent(code, code & 0x7f ? std::ldexp(1.0f, (code & 0x7f) - 95) : 0.0f);
      };
      EXPECT(AllFit(list, words.data(), 0, fits, number), " ");
    });
  }
}

// Codes and scales of any bits.
void TestDecoders() {
  for (const auto& lengths : kLengths) {
    int64_t words_size = 0, blocks = 0;
    for (const int64_t n : lengths) words_size += ByteWords(n), blocks += CeilDiv(n, 96);
    for (const int64_t workers : {1, 2, 3}) {
      const Guarded<uint32_t> words = Garbage<uint32_t>(workers * words_size, 5);
      const Guarded<float> scales = Garbage<float>(workers * blocks, 7);
      std::vector<std::vector<float>> tree, powers;
      int64_t at = 0, block = 0;
      for (const int64_t n : lengths) {
        tree.emplace_back(n);
        powers.emplace_back(n);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t w = 0; w < workers; ++w) {
            const uint32_t* row = words.data() + w * words_size + at;
            const auto code = reinterpret_cast<const uint8_t*>(row)[i];
            const float scale = scales.data()[w * blocks + block + i / 96];
            const float unit = scale < kSmallestScale ? 0.0f : scale;
            const float power = code & 0x7f ? std::ldexp(1.0f, (code & 0x7f) - 95) : 0.0f;
            tree.back()[i] =
                Flush(tree.back()[i] + Sent(code, Flush(TreeNumber(code & 0x7f) * unit)));
            powers.back()[i] = Flush(powers.back()[i] + Sent(code, power));
          }
          tree.back()[i] = SignedFlush(tree.back()[i] * 0.3f);
          powers.back()[i] = SignedFlush(powers.back()[i] * 0.3f);
        }
        at += ByteWords(n);
        block += CeilDiv(n, 96);
      }
      OnEveryIsa([&](const Executor& executor) {
        const ByteRows rows{words.data(), scales.data(), workers};
        Outputs outputs(lengths);
        const bool finite = DecodeTree(executor, outputs.targets, rows, 96, 0.3f);
        EXPECT(outputs.Are(tree) && finite == Finite(tree), "tree of %ld", long(workers));
        Outputs others(lengths);
        const bool bounded = DecodePowers(executor, others.targets, rows, 0.3f);
        EXPECT(others.Are(powers) && bounded, "powers of %ld", long(workers));
      });
    }
  }
}

void TestWhatIsNotFinite() {
  for (const uint32_t bad : {0x7f800000u, 0xff800000u, 0x7fc00000u}) {
    OnEveryIsa([&](const Executor& executor) {
      List list({70001, 3});
      list.xs[1][2] = FloatOf(bad);
      std::vector<uint32_t> words(list.words);
      std::vector<float> scales(2);
      EXPECT(!EncodeTree(executor, list.sources, 1.0f, 0, words.data(), scales.data()), " ");
      EXPECT(!EncodePowers(executor, list.sources, 1.0f, {{}, {}}, words.data()), " ");
    });
  }
}

}  // namespace
}  // namespace grace

int main() {
  grace::TestTree();
  grace::TestPowers();
  grace::TestDecoders();
  grace::TestWhatIsNotFinite();
  return grace::Finish("byte codes");
}
