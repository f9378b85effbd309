// Quantiles: ids, means and what is kept, against the definition; and decoding of any bits.
#include "kernels/codes/quantiles.h"

#include <cmath>
#include <limits>
#include <map>
#include <new>

#include "garbage.h"
#include "kernels/codes/quantile_bins.h"

namespace grace {

struct Wanted {
  std::vector<uint8_t> ids;
  std::vector<float> means, residual_out;
};

// The sign and magnitude that an element counts as, from its bits.
struct Number {
  bool negative;
  uint32_t bits;
  bool operator<(const Number& other) const { return bits >> 16 < other.bits >> 16; }
};

Number NumberOf(float x) {
  const uint32_t bits = std::min(BitsOf(x) & kMagnitude, kInfinity - 1);
  if (bits < kSmallestNormal) return {false, 0};
  return {BitsOf(x) > kMagnitude, bits};
}

Wanted Encoded(const std::vector<float>& acc, Quantiles quantiles) {
  const int64_t q = quantiles.buckets, span = quantiles.span, n = acc.size();
  std::vector<Number> sides[2];
  bool zeros = false;
  for (const float x : acc) {
    const Number own = NumberOf(x);
    if (own.bits) sides[own.negative].push_back(own);
    zeros |= own.bits == 0;
  }
  for (auto& side : sides) std::sort(side.begin(), side.end());
  const int64_t positives = sides[0].size(), negatives = sides[1].size();
  int64_t runs = 0;
  if (negatives) {
    const double share = double(q / span) * double(negatives) / double(positives + negatives);
    const int64_t most = q / span - CeilDiv(int64_t(zeros) + (positives > 0), span);
    runs = std::min(std::max<int64_t>(int64_t(std::floor(share + 0.5)), 1), most);
  }
  const int64_t below = runs * span;
  Wanted wanted;
  std::map<int64_t, std::map<uint32_t, int64_t>> sums;  // by bucket and exponent-and-bin
  std::vector<int64_t> counts(q), largest(q);
  std::vector<double> signs(q);
  for (const float x : acc) {
    const Number own = NumberOf(x);
    const auto& side = sides[own.negative];
    const int64_t lesser = std::lower_bound(side.begin(), side.end(), own) - side.begin();
    int64_t id = below;
    if (own.negative)
      id = lesser * below / negatives;
    else if (own.bits)
      id = below + zeros + lesser * (q - below - zeros) / positives;
    wanted.ids.push_back(uint8_t(id));
    ++counts[id];
    signs[id] = own.negative ? -1 : 1;
    if (!own.bits) continue;
    sums[id][own.bits >> 16] += (own.bits & 0x7fffff) | 0x800000;
    largest[id] = std::max<int64_t>(largest[id], own.bits >> 23);
  }
  wanted.means.assign(q, 0.0f);
  for (const auto& [id, bins] : sums) {
    int64_t total = 0;
    for (const auto& [bin, sum] : bins) {
      total += (sum << 7) >> std::min<int64_t>(largest[id] - (bin >> 7), 63);
    }
    const double mean = double(total) / double(counts[id]);
    wanted.means[id] = float(signs[id] * std::ldexp(mean, int(largest[id]) - 157));
  }
  for (int64_t i = 0; i < n; ++i)
    wanted.residual_out.push_back(acc[i] - wanted.means[wanted.ids[i]]);
  return wanted;
}

// Elements of a kind: of both signs, of one, ties, mostly zero, of all sizes, huge, special.
std::vector<float> Made(int64_t n, int kind) {
  std::vector<float> x = Gradient(n);
  for (int64_t i = 0; i < n; ++i) {
    if (kind == 1) x[i] = -std::fabs(x[i]);
    if (kind == 2) x[i] = i % 3 ? 2.0f : -2.0f;
    if (kind == 3 && i % 50) x[i] = 0.0f;
    if (kind == 4) x[i] = std::ldexp(x[i], int(i * 37 % 120) - 100);
    if (kind == 5) x[i] = (i % 90 ? 1.0f : -1.0f) * 1e38f;
    x[i] = Flush(x[i]);
  }
  return x;
}

void TestEncoder() {
  const std::vector<int64_t> lengths = {1,    2,     31,     0, 32, 33,    257,
                                        2049, 65537, 131072, 5, 0,  200001};
  for (int kind = 0; kind < 6; ++kind) {
    for (const Quantiles quantiles : {Quantiles{64, 1}, {64, 8}, {3, 1}, {256, 2}}) {
      const int32_t bits = IdBits(quantiles.buckets);
      std::vector<std::vector<float>> xs;
      std::vector<Wanted> wanted;
      std::vector<uint32_t> words;
      std::vector<float> means;
      for (const int64_t n : lengths) {
        xs.push_back(Made(n, kind));
        std::vector<float> acc(xs.back());
        for (float& value : acc) value = Flush(Flush(value * 0.5f) + value);
        wanted.push_back(Encoded(acc, quantiles));
        const Wanted& own = wanted.back();
        means.insert(means.end(), own.means.begin(), own.means.end());
        std::vector<uint32_t> packed(PackedWords(n, bits));
        for (int64_t i = 0; i < n; ++i) {
          for (int32_t p = 0; p < bits; ++p) {
            packed[i / 32 * bits + p] |= uint32_t(own.ids[i] >> p & 1) << (i % 32);
          }
        }
        words.insert(words.end(), packed.begin(), packed.end());
      }
      OnEveryIsa([&](const Executor& executor) {
        Guarded<uint32_t> got(words.size());
        Guarded<float> levels(means.size());
        Outputs residual_out(lengths);
        std::vector<EncodeInput> sources;
        for (size_t i = 0; i < lengths.size(); ++i) {
          sources.push_back(
              {xs[i].data(), xs[i].data(), residual_out.targets[i].total, lengths[i]});
        }
        EXPECT(EncodeQuantiles(executor, sources, 0.5f, quantiles, got.data(), levels.data()),
               "finite");
        EXPECT(got.Equals(words) && got.Intact(), "kind %d, %d", kind, quantiles.buckets);
        EXPECT(levels.Equals(means) && levels.Intact(), "kind %d, %d", kind, quantiles.buckets);
        for (size_t i = 0; i < lengths.size(); ++i) {
          bool same = residual_out.Intact();
          for (int64_t j = 0; j < lengths[i]; ++j) {
            same &= Flush(residual_out.targets[i].total[j]) == Flush(wanted[i].residual_out[j]);
          }
          EXPECT(same, "kind %d, %d, tensor %d", kind, quantiles.buckets, int(i));
        }
      });
    }
  }
}

// Any bits decode; what is not finite is seen, and encoded like the largest number.
void TestGarbage() {
  for (const auto& lengths : kLists) {
    for (const int32_t buckets : {64, 5, 256}) {
      const int32_t bits = IdBits(buckets);
      int64_t size = 0;
      for (const int64_t n : lengths) size += PackedWords(n, bits);
      const Guarded<uint32_t> words = Garbage<uint32_t>(3 * size, 1);
      const Guarded<float> means = Garbage<float>(3 * lengths.size() * buckets, 2);
      std::vector<std::vector<float>> wanted;
      int64_t place = 0;
      for (size_t t = 0; t < lengths.size(); ++t) {
        wanted.emplace_back(lengths[t]);
        for (int64_t i = 0; i < lengths[t]; ++i) {
          float sum = 0;
          for (int64_t w = 0; w < 3; ++w) {
            int32_t id = 0;
            for (int32_t p = 0; p < bits; ++p) {
              id |= (words.data()[w * size + place + i / 32 * bits + p] >> (i % 32) & 1) << p;
            }
            const int64_t at = (w * lengths.size() + t) * buckets + std::min(id, buckets - 1);
            sum = Flush(sum + Flush(means.data()[at]));
          }
          wanted[t][i] = SignedFlush(sum * 0.5f);
        }
        place += PackedWords(lengths[t], bits);
      }
      OnEveryIsa([&](const Executor& executor) {
        Outputs outputs(lengths);
        const QuantileRows rows{words.data(), means.data(), 3};
        const bool finite = DecodeQuantiles(executor, outputs.targets, rows, buckets, 0.5f);
        EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%d buckets", buckets);
      });
    }
  }
  const Guarded<float> x = Garbage<float>(70001, 3);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& acc :
       {std::vector<float>(x.data(), x.data() + 70001), {1.0f, infinity, -infinity, NAN}}) {
    const Wanted wanted = Encoded(acc, {64, 1});
    const int64_t n = acc.size();
    OnEveryIsa([&](const Executor& executor) {
      Guarded<uint32_t> words(PackedWords(n, 6));
      Guarded<float> means(64);
      const bool finite = EncodeQuantiles(executor, {{acc.data(), nullptr, nullptr, n}}, 1.0f,
                                          {64, 1}, words.data(), means.data());
      EXPECT(!finite && means.Equals(wanted.means) && words.Intact() && means.Intact(), "garbage");
    });
  }
}

// Where memory runs out midway, the thread's histogram is as it was before.
void TestOutOfMemory() {
  static Counting counting;
  for (const int64_t bin : {0, 130, 40000}) counting.words[bin] = kOne + 7;
  counting.bounds = {kSmallestNormal, kInfinity - 1};
  int visited = 0;
  bool thrown = false;
  try {
    counting.Take([&](int64_t, const uint64_t*) {
      if (++visited == 2) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  EXPECT(thrown && visited == 2, "%d rows visited", visited);
  for (const uint64_t word : counting.words) EXPECT(word == 0, "a word is left");
  EXPECT(counting.bounds.least == Bounds().least && counting.bounds.largest == 0, "bounds");
}

}  // namespace grace

int main() {
  grace::TestEncoder();
  grace::TestOutOfMemory();
  grace::TestGarbage();
  return grace::Finish("quantiles");
}
