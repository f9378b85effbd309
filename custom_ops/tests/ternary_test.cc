// Ternary digits: every instruction set and number of threads gives the bits of the definitions.
#include "kernels/codes/ternary.h"

#include <cmath>

#include "coarse_words.h"

namespace grace {

constexpr int32_t kWidths[] = {kTrits, 2, 3, 4, 5, 8, 16};

// The word and the digit in it of element i of n, for words of so many digits.
struct Place {
  Place(int64_t i, int64_t n, int64_t digits) {
    const int64_t group = kWordsOfGroup * digits, first = i / group * group;
    const int64_t words = std::min(kWordsOfGroup, CeilDiv(n - first, digits));
    word = first / digits + (i - first) % words;
    digit = (i - first) / words;
  }
  int64_t word, digit;
};

std::vector<uint32_t> Packed(const std::vector<int>& digits, int32_t bits) {
  const int64_t n = digits.size(), each = DigitsOf(bits);
  std::vector<int64_t> numbers(TernaryWords(n, bits));
  for (int64_t i = 0; i < n; ++i) {
    const Place place(i, n, each);
    int64_t worth = 1;
    const int64_t power = bits == kTrits ? each - 1 - place.digit : place.digit * bits;
    for (int64_t p = 0; p < power; ++p) worth *= bits == kTrits ? 3 : 2;
    numbers[place.word] += digits[i] * worth;
  }
  std::vector<uint32_t> words;
  for (const int64_t number : numbers) {
    const long double fraction = number * (4294967296.0L / 3486784401.0L);
    words.push_back(static_cast<uint32_t>(bits == kTrits ? std::llrint(fraction) : number));
  }
  return words;
}

float Normal(float x) { return Flush(std::fabs(x)); }

void TestScales() {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = Gradient(n);
    double sum = 0, square = 0;
    float largest = 0;
    for (const float v : x) {
      sum += v;
      square += double(v) * v;
      largest = std::max(largest, Normal(v));
    }
    const double mean = sum / n, deviation = std::sqrt(std::max(0.0, square / n - mean * mean));
    for (const float clip : {0.0f, 2.5f, 1.0f}) {
      const bool clipped = clip > 0 && deviation > 1e-4 * std::sqrt(square / n);
      const float wanted = clipped ? std::min(largest, float(clip * deviation)) : largest;
      float first = -1;
      OnEveryIsa([&](const Executor& executor) {
        float scale = -1;
        EXPECT(TernaryScales(executor, {{x.data(), nullptr, nullptr, n}}, 1.0f, clip, &scale),
               "n = %ld", long(n));
        EXPECT(std::fabs(scale - wanted) <= 1e-6f * wanted, "%g is not %g, n = %ld", scale, wanted,
               long(n));
        if (first < 0) first = scale;
        EXPECT(scale == first, "n = %ld", long(n));
      });
    }
  }
}

void TestEncode() {
  const PhiloxKey key{5, 3, 2, 0};
  for (const int64_t n : {1, 5, 19, 20, 21, 31, 32, 33, 319, 320, 321, 640, 1999, 2049, 70001}) {
    const std::vector<float> x = Gradient(n);
    PhiloxKey stream = key;
    stream.variable_draw = 9;
    const std::vector<float> u = CoarseUniform(stream, n);
    const float own = 1.5f, scale = 2.0f;
    std::vector<int> digits(n);
    for (int64_t i = 0; i < n; ++i) {
      const float size = std::min(Normal(x[i]), own) * 0.5f;
      digits[i] = size + u[i] < 1 ? 0 : (BitsOf(x[i]) & kSignBit ? -1 : 1);
    }
    for (const int32_t bits : kWidths) {
      const std::vector<uint32_t> wanted = Packed(digits, bits);
      OnEveryIsa([&](const Executor& executor) {
        Guarded<uint32_t> words(wanted.size());
        TernaryEncode(executor, {{x.data(), nullptr, nullptr, n}}, 1.0f, &own, &scale, bits,
                      {stream}, words.data());
        EXPECT(words.Intact() && words.Equals(wanted), "n = %ld, %d bits", long(n), bits);
        Guarded<float> total(n);
        EXPECT(TernaryDecode(executor, {words.data(), &scale, 1}, {{total.data(), n}}, bits, 0.5f),
               "n = %ld, %d bits", long(n), bits);
        bool same = total.Intact();
        for (int64_t i = 0; i < n; ++i) same &= BitsOf(total[i]) == BitsOf(float(digits[i]));
        EXPECT(same, "n = %ld, %d bits, decoded", long(n), bits);
      });
    }
  }
}

// Every word of trits whose digits are extreme, and many others.
void TestWordsOfTrits() {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int> digits(20);
    for (int d = 0; d < 20; ++d) {
      digits[d] = trial < 60 ? (d >= trial / 3 ? trial % 3 - 1 : 0) : int(random() % 3) - 1;
      if (trial % 2 && trial < 60 && d == trial / 3) digits[d] = -digits[d];
    }
    const std::vector<uint32_t> word = Packed(digits, kTrits);
    float total[20], scale = 1.0f;
    TernaryDecode(Serial(), {word.data(), &scale, 1}, {{total, 20}}, kTrits, 1.0f);
    for (int d = 0; d < 20; ++d) EXPECT(total[d] == digits[d], "trial %d, digit %d", trial, d);
  }
}

// Any bits are taken, as what they mean, and sums of fields are sums of digits.
void TestDecodeOfWorkers() {
  std::mt19937 random(1);
  for (const int32_t bits : kWidths) {
    for (const int64_t n : {1, 37, 321, 9001}) {
      const int64_t row = TernaryWords(n, bits), digits = DigitsOf(bits), workers = 3;
      std::vector<uint32_t> words(workers * row);
      for (uint32_t& word : words) word = random();
      const std::vector<float> scales = {0.3f, 7.0f, -1.0f};
      std::vector<float> wanted(n);
      for (int64_t i = 0; i < n; ++i) {
        const Place place(i, n, digits);
        for (int64_t w = 0; w < 2; ++w) {  // the last worker's scale counts as 0
          uint32_t word = words[w * row + place.word];
          int64_t digit = 0;
          if (bits == kTrits) {
            for (int64_t d = 0; d < place.digit; ++d) word *= 3;
            const auto fraction = static_cast<int32_t>(word);
            digit = (fraction > 715827882) - (fraction < -715827882);
          } else {
            for (int64_t d = 0; d <= place.digit; ++d) {
              digit = word & ((1u << bits) - 1);
              if (digit >= 1 << (bits - 1)) digit -= int64_t{1} << bits;
              word = static_cast<uint32_t>((int64_t{word} - digit) >> bits);
            }
          }
          wanted[i] += static_cast<float>(digit) * scales[w];
        }
        wanted[i] *= 0.25f;
      }
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> total(n);
        TernaryDecode(executor, {words.data(), scales.data(), workers}, {{total.data(), n}}, bits,
                      0.25f);
        EXPECT(total.Intact() && total.Equals(wanted), "n = %ld, %d bits", long(n), bits);
      });
    }
  }
}

void TestFlags() {
  std::vector<float> x = Gradient(3001);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const int64_t at : {0, 2047, 2048, 3000}) {
      const float before = x[at];
      x[at] = bad;
      OnEveryIsa([&](const Executor& executor) {
        for (const float clip : {0.0f, 2.5f}) {
          float scale = 0;
          EXPECT(!TernaryScales(executor, {{x.data(), nullptr, nullptr, 3001}}, 1.0f, clip, &scale),
                 "%ld", long(at));
        }
      });
      x[at] = before;
    }
  }
}

}  // namespace grace

int main() {
  grace::TestScales();
  grace::TestEncode();
  grace::TestWordsOfTrits();
  grace::TestDecodeOfWorkers();
  grace::TestFlags();
  return grace::Finish("ternary");
}
