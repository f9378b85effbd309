// The list kernels are the compositions that they replace, whatever the lengths.
#include <cmath>

#include "coarse_words.h"
#include "kernels/base/strata.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/signs/signs.h"
#include "lists_of_one.h"
#include "testing.h"

namespace grace {

const std::vector<std::vector<int64_t>> kLists = {
    {1, 2, 31, 32, 33, 511, 512, 513, 0, 2047, 2048, 2049}, {70001, 3, 0, 4097}, {1}};

// x * multiplier + residual, each on its own, where denormals are zero.
std::vector<float> Composed(const std::vector<float>& x, const float* residual, float multiplier) {
  const DenormalsAreZero scope;
  std::vector<float> acc(x);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float value = x[i];
    if (multiplier != 1.0f) value = value * multiplier;
    if (residual) value = value + residual[i];
    acc[i] = value;
  }
  return acc;
}

class ListTest {
 public:
  ListTest(const std::vector<int64_t>& sizes, ListCode code, bool keep, float multiplier)
      : sizes_(sizes), code_(code), keep_(keep), multiplier_(multiplier) {
    for (const int64_t n : sizes) {
      x_.push_back(Gradient(n));
      residual_.push_back(Gradient(n + 1));
      words_size_ += code.WordsOf(n);
      scales_size_ += code.ScalesOf(n);
    }
  }

  void Check(const Executor& executor, const PhiloxKey* key) {
    Guarded<uint32_t> words(words_size_);
    Guarded<float> scales(scales_size_);
    std::vector<Guarded<float>> residual_out, totals;
    std::vector<Encoded> list;
    std::vector<Decoded> decoded;
    int64_t words_at = 0, scales_at = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      residual_out.emplace_back(sizes_[i]);
      totals.emplace_back(sizes_[i]);
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      list.push_back({{x_[i].data(), keep_ ? residual_[i].data() : nullptr, multiplier_},
                      sizes_[i],
                      words.data() + words_at,
                      scales.data() + scales_at,
                      keep_ ? residual_out[i].data() : nullptr,
                      uint32_t(i << 8)});
      decoded.push_back({sizes_[i], words_at, scales_at, totals[i].data()});
      words_at += code_.WordsOf(sizes_[i]);
      scales_at += code_.ScalesOf(sizes_[i]);
    }
    const bool finite = QuantizeList(executor, list, code_, key);
    const Rows rows{words.data(), scales.data(), 1, words_at, scales_at};
    const bool bounded = DequantizeList(executor, rows, decoded, code_.quantization, 0.3f);
    bool same = words.Intact() && scales.Intact() && finite && bounded;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      same &= residual_out[i].Intact() && totals[i].Intact() && Same(i, list[i], key, totals[i]);
    }
    EXPECT(same, "%d tensors, %d bits, block %ld, l2 %d, key %d, keep %d", int(sizes_.size()),
           code_.quantization.bits, long(code_.quantization.block), code_.norm == Norm::kL2,
           key != nullptr, keep_);
  }

 private:
  bool Same(size_t i, const Encoded& own, const PhiloxKey* key, Guarded<float>& total) const {
    const int64_t n = own.n;
    if (n == 0) return true;
    const std::vector<float> acc =
        Composed(x_[i], keep_ ? residual_[i].data() : nullptr, multiplier_);
    std::vector<float> scales(code_.ScalesOf(n)), back(n), sum(n);
    std::vector<uint32_t> words(code_.WordsOf(n));
    Quantization quantization = code_.quantization;
    quantization.block = code_.BlockOf(n);
    PhiloxKey stream = key ? *key : PhiloxKey{};
    stream.variable_draw = own.variable_draw;
    BlockScales(Serial(), acc.data(), n, quantization.block, code_.norm, scales.data());
    Quantize(Serial(), acc.data(), scales.data(), n, quantization, key ? &stream : nullptr,
             words.data());
    DequantizeSum(Serial(), words.data(), scales.data(), 1, n, quantization, back.data());
    DequantizeSum(Serial(), words.data(), scales.data(), 1, n, quantization, sum.data());
    bool same = std::memcmp(words.data(), own.words, 4 * words.size()) == 0;
    same &= std::memcmp(scales.data(), own.scales, 4 * scales.size()) == 0;
    const DenormalsAreZero scope;
    for (int64_t j = 0; j < n; ++j) {
      const volatile float left = acc[j] - back[j], product = sum[j] * 0.3f;
      if (keep_) same &= BitsOf(left) == BitsOf(own.residual_out[j]);
      same &= BitsOf(product) == BitsOf(total[j]);
    }
    return same;
  }

  std::vector<int64_t> sizes_;
  ListCode code_;
  bool keep_;
  float multiplier_;
  std::vector<std::vector<float>> x_, residual_;
  int64_t words_size_ = 0, scales_size_ = 0;
};

void TestQuantizeList() {
  const PhiloxKey key{11, 2, 3, 0};
  for (const auto& sizes : kLists) {
    for (const int64_t block : {0, 1, 32, 100, 512, 2049, 70000}) {
      for (const Norm norm : {Norm::kMax, Norm::kL2}) {
        for (const bool keep : {false, true}) {
          ListTest few(sizes, {{7, 4, block}, norm}, keep, 0.3f);
          ListTest many(sizes, {{300, 10, block}, norm}, keep, 1.0f);
          OnEveryIsa([&](const Executor& executor) {
            few.Check(executor, &key);
            many.Check(executor, nullptr);
          });
        }
      }
    }
  }
}

// Levels between the minimum and the maximum of each block, with an offset to all random words.
void TestMinMax() {
  const PhiloxKey key{11, 2, 3, 0};
  const uint32_t stratum = 0xfffe1234;
  for (const int64_t n : {1, 31, 32, 33, 513, 2049, 70001}) {
    const std::vector<float> x = Gradient(n);
    std::vector<uint32_t> whole(n);
    PhiloxKey stream = key;
    stream.variable_draw = 7;
    RandomWords(Serial(), stream, n, whole.data());
    const std::vector<uint32_t> coarse = CoarseWords(stream, n);
    for (const int64_t block : {0, 32, 100, 512, 70000}) {
      for (const int32_t bits : {2, 4, 8, 10, 16}) {
        const ListCode code{{(1 << bits) - 1, bits, block, true}, Norm::kMinMax};
        const float top = static_cast<float>((1 << bits) - 1);
        std::vector<float> scales(code.ScalesOf(n)), values(n), left(n);
        std::vector<uint32_t> words(code.WordsOf(n));
        const DenormalsAreZero scope;
        for (int64_t b = 0, size = code.BlockOf(n); b < code.BlocksOf(n); ++b) {
          const int64_t first = b * size, last = std::min(n, first + size);
          float low = Flush(x[first]), high = low;
          for (int64_t i = first; i < last; ++i) {
            low = std::min(low, Flush(x[i]));
            high = std::max(high, Flush(x[i]));
          }
          const float half = 0.5f * high - 0.5f * low, c = half < kSmallestScale ? 0.0f : half;
          scales[2 * b] = c;
          scales[2 * b + 1] = low == 0.0f ? 0.0f : low;
          for (int64_t i = first; i < last; ++i) {
            const uint32_t random =
                bits < 8 ? coarse[i] + (stratum & 0xffff0000u) : whole[i] + stratum;
            const float u = static_cast<float>(random >> 8) * 0x1p-24f;
            const float a = (Flush(x[i]) - low) * (c == 0.0f ? 0.0f : 0.5f * top / c);
            const float level = std::min(std::floor(a + u), top);
            for (int32_t p = 0; p < bits; ++p) {
              words[i / 32 * bits + p] |= (uint32_t(level) >> p & 1u) << (i % 32);
            }
            const float rise = level * (c == 0.0f ? 0.0f : c / (0.5f * top));
            values[i] = Flush(scales[2 * b + 1] + rise);
            left[i] = x[i] - values[i];
          }
        }
        OnEveryIsa([&](const Executor& executor) {
          Guarded<uint32_t> own_words(words.size());
          Guarded<float> own_scales(scales.size()), residual_out(n), total(n);
          const Encoded own{{x.data(), nullptr, 1.0f}, n, own_words.data(), own_scales.data(),
                            residual_out.data(),       7, stratum};
          bool same = QuantizeList(executor, {own}, code, &key);
          const Rows rows{own_words.data(), own_scales.data(), 1, 0, 0};
          const std::vector<Decoded> list{{n, 0, 0, total.data()}};
          same &= DequantizeList(executor, rows, list, code.quantization, 1.0f);
          same &= own_words.Equals(words) && own_words.Intact() && own_scales.Equals(scales);
          same &= own_scales.Intact() && residual_out.Equals(left) && residual_out.Intact();
          EXPECT(same && total.Equals(values) && total.Intact(), "%ld, %d bits, block %ld", long(n),
                 bits, long(block));
        });
      }
    }
  }
}

// The workers' offsets are the multiples of 1/N of 2^32, in another order for another stream.
void TestStrata() {
  for (const int64_t workers : {1, 2, 3, 8, 100}) {
    std::vector<uint32_t> first;
    bool other = workers < 3;
    for (uint32_t step = 0; step < 20; ++step) {
      std::vector<uint32_t> offsets, sorted;
      for (int64_t w = 0; w < workers; ++w) {
        offsets.push_back(StratumOf({1, 0xffffffff, step, 2}, w, workers));
        sorted.push_back(static_cast<uint32_t>((uint64_t(w) << 32) / workers));
      }
      if (first.empty()) first = offsets;
      other |= offsets != first;
      std::sort(offsets.begin(), offsets.end());
      EXPECT(offsets == sorted, "%ld workers", long(workers));
    }
    EXPECT(other, "%ld workers", long(workers));
  }
}

// One bad element anywhere, and whether the flags tell.
void TestFlags() {
  std::vector<float> x = Gradient(3001), scales(94), total(3001);
  std::vector<uint32_t> words(PackedWords(3001, 4));
  for (const int64_t block : {32, 0}) {
    for (const Norm norm : {Norm::kMax, Norm::kL2, Norm::kMinMax}) {
      const bool minmax = norm == Norm::kMinMax;
      const ListCode code{{minmax ? 15 : 7, 4, block, minmax}, norm};
      scales.resize(code.ScalesOf(3001));
      for (const int64_t at : {0, 1500, 2999, 3000}) {
        const float before = x[at];
        x[at] = at % 2 ? -INFINITY : NAN;
        OnEveryIsa([&](const Executor& executor) {
          const std::vector<Encoded> list{
              {{x.data(), nullptr, 1.0f}, 3001, words.data(), scales.data(), nullptr, 0}};
          EXPECT(!QuantizeList(executor, list, code, nullptr), "%ld", long(at));
          const Rows rows{words.data(), scales.data(), 1, 0, 0};
          const std::vector<Decoded> decoded{{3001, 0, 0, total.data()}};
          EXPECT(!DequantizeList(executor, rows, decoded, code.quantization, 1.0f), "%ld",
                 long(at));
          const std::vector<EncodeInput> own{{x.data(), nullptr, nullptr, 3001}};
          EXPECT(!PackSignsList(executor, own, 1.0f, words.data()), "%ld", long(at));
        });
        x[at] = before;
      }
    }
  }
}

void TestSigns() {
  for (const auto& sizes : kLists) {
    for (const float multiplier : {1.0f, -0.3f}) {
      OnEveryIsa([&](const Executor& executor) {
        for (const int64_t n : sizes) {
          if (n == 0) continue;
          const std::vector<float> x = Gradient(n), acc = Composed(x, nullptr, multiplier);
          std::vector<uint32_t> wanted(PackedWords(n, 1));
          Guarded<uint32_t> words(wanted.size());
          PackSigns(Serial(), acc.data(), n, wanted.data());
          EXPECT(
              PackSignsList(executor, {{x.data(), nullptr, nullptr, n}}, multiplier, words.data()),
              "%ld", long(n));
          EXPECT(words.Intact() && words.Equals(wanted), "%ld, %f", long(n), multiplier);
          std::vector<float> vote(n);
          Guarded<float> total(n);
          VoteSigns(Serial(), wanted.data(), 1, n, vote.data());
          for (float& value : vote) value *= multiplier;
          VoteSignsList(executor, wanted.data(), 1, {{total.data(), n}}, multiplier);
          EXPECT(total.Intact() && total.Equals(vote), "%ld, %f", long(n), multiplier);
        }
      });
    }
  }
}

// Finite values whose product with the factor is not.
void TestFactorThatOverflows() {
  const uint32_t words[] = {0, ~0u, ~0u, ~0u};  // 32 codes of 14, the highest
  const float scale = 4.0f;
  const Rows rows{words, &scale, 1, 4, 1};
  for (const float factor : {1e37f, 1e38f, -1e38f}) {
    OnEveryIsa([&](const Executor& executor) {
      Guarded<float> total(32);
      const bool finite =
          DequantizeList(executor, rows, {{32, 0, 0, total.data()}}, {7, 4, 32}, factor);
      EXPECT(finite == (factor == 1e37f) && std::isfinite(total[0]) == finite, "factor %g", factor);
    });
  }
}

}  // namespace grace

int main() {
  grace::TestQuantizeList();
  grace::TestMinMax();
  grace::TestFactorThatOverflows();
  grace::TestStrata();
  grace::TestFlags();
  grace::TestSigns();
  return grace::Finish("lists");
}
