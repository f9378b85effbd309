// Two means: what is sent and residual_out, against the definition; and signs and means of any
// bits.
#include "kernels/select/two_means.h"

#include <cmath>
#include <numeric>

#include "garbage.h"

namespace grace {

struct Wanted {
  float means[2] = {0, 0};
  std::vector<int32_t> indices;
  std::vector<float> residual_out;
};

Wanted Encoded(const std::vector<float>& acc, int64_t k) {
  Wanted wanted;
  std::vector<std::vector<int32_t>> sides(2);
  for (size_t i = 0; i < acc.size(); ++i) {
    if (Flush(acc[i]) != 0) sides[acc[i] < 0].push_back(int32_t(i));
  }
  const int64_t sizes[2] = {int64_t(sides[0].size()), int64_t(sides[1].size())};
  const int64_t all = sizes[0] + sizes[1];
  int64_t shares[2] = {sizes[0], sizes[1]};
  if (all > k) {
    shares[0] = (2 * k * sizes[0] + all) / (2 * all);
    shares[1] = k - shares[0];
  }
  for (int side = 0; side < 2; ++side) {
    std::stable_sort(sides[side].begin(), sides[side].end(),
                     [&](int32_t a, int32_t b) { return std::fabs(acc[a]) > std::fabs(acc[b]); });
    sides[side].resize(shares[side]);
    wanted.indices.insert(wanted.indices.end(), sides[side].begin(), sides[side].end());
  }
  std::sort(wanted.indices.begin(), wanted.indices.end());
  wanted.residual_out = acc;
  for (int side = 0; side < 2; ++side) {
    std::vector<double> row(1);
    while (int64_t(row.size()) < k) row.resize(2 * row.size());
    for (size_t j = 0; j < wanted.indices.size(); ++j) {
      const float value = acc[wanted.indices[j]];
      if ((value < 0) == side) row[j] = value;
    }
    for (; row.size() > 1; row.resize(row.size() / 2)) {
      for (size_t j = 0; j < row.size() / 2; ++j) row[j] = row[2 * j] + row[2 * j + 1];
    }
    if (shares[side]) wanted.means[side] = float(row[0] / double(shares[side]));
    for (const int32_t i : sides[side]) wanted.residual_out[i] = acc[i] - wanted.means[side];
  }
  return wanted;
}

// Elements of normal size of a kind: of both signs, of one, all equal, mostly zero, clustered.
std::vector<float> Made(int64_t n, int kind) {
  std::vector<float> x = Gradient(n);
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) < 1e-20f) x[i] = 0.0f;
    if (kind == 1) x[i] = -std::fabs(x[i]);
    if (kind == 2) x[i] = i % 3 ? 2.0f : -2.0f;
    if (kind == 3 && i % 50) x[i] = i % 2 ? 0.0f : 1e-40f;
    if (kind == 4 && i < n / 2) x[i] *= 1e-3f;
  }
  return x;
}

void TestEncoder() {
  const std::vector<int64_t> lengths = {1, 2, 33, 2047, 2048, 70001, 131072, 5};
  for (int kind = 0; kind < 5; ++kind) {
    for (const double ratio : {0.01, 0.4}) {
      std::vector<std::vector<float>> xs;
      std::vector<Wanted> wanted;
      std::vector<int64_t> ks;
      int64_t entries = 0, words = 0;
      for (const int64_t n : lengths) {
        ks.push_back(std::max<int64_t>(1, int64_t(ratio * double(n))));
        entries += ks.back();
        words += PackedWords(ks.back(), 1);
        xs.push_back(Made(n, kind));
        std::vector<float> acc(xs.back());
        for (float& value : acc) value = 1.5f * Flush(value);
        wanted.push_back(Encoded(acc, ks.back()));
      }
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> means(2 * lengths.size());
        Guarded<uint32_t> signs(words);
        Guarded<int32_t> indices(entries), counts(lengths.size());
        Outputs residual_out(lengths);
        std::vector<EncodeInput> sources;
        for (size_t i = 0; i < lengths.size(); ++i) {
          sources.push_back(
              {xs[i].data(), xs[i].data(), residual_out.targets[i].total, lengths[i]});
        }
        // x * 0.5 + x
        EXPECT(TwoMeansList(executor, sources, 0.5f,
                            {ks, means.data(), signs.data(), indices.data(), counts.data()}),
               "finite");
        int64_t at = 0, word = 0;
        for (size_t i = 0; i < lengths.size(); ++i) {
          const Wanted& own = wanted[i];
          bool same = counts[i] == int64_t(own.indices.size()) && means[2 * i] == own.means[0] &&
                      means[2 * i + 1] == own.means[1];
          for (int64_t j = 0; j < ks[i]; ++j) {
            const bool used = j < counts[i];
            same &= indices[at + j] == (used ? own.indices[j] : 0);
            const uint32_t sign = used && xs[i][own.indices[j]] > 0;
            same &= (signs[word + j / 32] >> (j % 32) & 1) == sign;
          }
          for (int64_t j = 0; j < lengths[i]; ++j) {
            same &= Flush(residual_out.targets[i].total[j]) == Flush(own.residual_out[j]);
          }
          EXPECT(same, "kind %d, ratio %g, tensor %d", kind, ratio, int(i));
          at += ks[i];
          word += PackedWords(ks[i], 1);
        }
        EXPECT(means.Intact() && signs.Intact() && indices.Intact() && counts.Intact() &&
                   residual_out.Intact(),
               "kind %d", kind);
      });
    }
  }
}

// Any bits are signs and means; elements that are not finite are selected like others.
void TestGarbage() {
  const std::vector<int64_t> ks = {1, 31, 32, 33, 257};
  const int64_t entries = std::accumulate(ks.begin(), ks.end(), int64_t{0});
  int64_t words = 0;
  for (const int64_t k : ks) words += PackedWords(k, 1);
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const Guarded<float> means = Garbage<float>(3 * 2 * ks.size(), seed);
    const Guarded<uint32_t> signs = Garbage<uint32_t>(3 * words, seed + 1);
    const Guarded<float> x = Garbage<float>(70001, seed);
    OnEveryIsa([&](const Executor& executor) {
      Guarded<float> values(3 * entries, seed % 3);
      ExpandMeans(executor, means.data(), signs.data(), 3, ks, values.data());
      EXPECT(values.Intact(), "seed %d", int(seed));
      Guarded<float> own(2);
      Guarded<uint32_t> bits(PackedWords(700, 1));
      Guarded<int32_t> indices(700), counts(1);
      const bool finite =
          TwoMeansList(executor, {{x.data(), nullptr, nullptr, 70001}}, 1.0f,
                       {{700}, own.data(), bits.data(), indices.data(), counts.data()});
      EXPECT(!finite && counts[0] == 700 && own.Intact() && bits.Intact() && indices.Intact(),
             "seed %d", int(seed));
    });
  }
}

}  // namespace grace

int main() {
  grace::TestEncoder();
  grace::TestGarbage();
  return grace::Finish("two means");
}
