// Selection by a sampled threshold: every instruction set and number of threads gives the bits of
// the plain definition.
#include "kernels/select/sampled_top_k.h"

#include <algorithm>
#include <numeric>

#include "testing.h"

namespace grace {

constexpr float kMomentum = 0.9f, kMultiplier = 0.7f;

struct Case {
  std::vector<int64_t> lengths;
  bool nesterov, masked;
};

// One tensor by definition: u, acc, and what is sent of it.
struct Wanted {
  std::vector<float> u, acc, values;
  std::vector<int32_t> indices;
};

uint32_t FloorOf(const std::vector<float>& acc, int64_t k, const Sampling& sampling) {
  if (sampling.stride == 1) return kSmallestNormal;
  uint32_t word;
  RandomWords(Serial(), sampling.key, 1, &word);
  std::vector<uint32_t> keys;
  for (int64_t j = 0; j < sampling.size; ++j) {
    const int64_t start = static_cast<uint64_t>(word) * sampling.stride >> 32;
    keys.push_back(BitsOf(acc[start + j * sampling.stride]) & kMagnitude);
  }
  std::sort(keys.rbegin(), keys.rend());
  float threshold = FloatOf(keys[sampling.rank - 1]);
  for (int round = 0; round < 10; ++round, threshold *= 0.8f) {
    const auto passes = [&](float x) { return (BitsOf(x) & kMagnitude) >= BitsOf(threshold); };
    const int64_t count = std::count_if(acc.begin(), acc.end(), passes);
    if (5 * count >= 4 * k) break;
  }
  return std::max(BitsOf(threshold), kSmallestNormal);
}

Wanted Defined(const std::vector<float>& x, const std::vector<float>& u,
               const std::vector<float>& v, int64_t k, const Sampling& sampling, const Case& own) {
  const DenormalsAreZero scope;
  const int64_t n = x.size();
  Wanted wanted{std::vector<float>(n), std::vector<float>(n), {}, {}};
  for (int64_t i = 0; i < n; ++i) {
    const float g = x[i] * kMultiplier, old = kMomentum * u[i];
    wanted.u[i] = old + g;
    const float ahead = kMomentum * wanted.u[i];
    wanted.acc[i] = own.nesterov ? (v[i] + g) + ahead : v[i] + wanted.u[i];
  }
  const uint32_t floor = FloorOf(wanted.acc, k, sampling);
  const auto key = [&](int32_t i) { return BitsOf(wanted.acc[i]) & kMagnitude; };
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key(a) > key(b); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  for (const int32_t i : order) {
    if (key(i) < floor) continue;
    wanted.indices.push_back(i);
    wanted.values.push_back(wanted.acc[i]);
  }
  for (const int32_t i : wanted.indices) {
    wanted.acc[i] = 0.0f;
    if (own.masked) wanted.u[i] = 0.0f;
  }
  return wanted;
}

void Check(const Case& own) {
  const size_t tensors = own.lengths.size();
  std::vector<std::vector<float>> xs, us, vs;
  std::vector<Sampling> samplings;
  std::vector<Wanted> wanted;
  Selection selection{{}, nullptr, nullptr};
  int64_t total = 0;
  for (size_t i = 0; i < tensors; ++i) {
    const int64_t n = own.lengths[i], k = std::max<int64_t>(1, n / 100);
    const int64_t stride = n < 3000 ? 1 : 99;
    const int64_t size = n / stride;
    xs.push_back(Gradient(n));
    us.push_back(Gradient(n + 1));
    vs.push_back(Gradient(n + 2));
    samplings.push_back({stride, size, CeilDiv(size * k, n), {1, 2, 3, uint32_t(i << 8)}});
    selection.ks.push_back(k);
    total += k;
    wanted.push_back(Defined(xs[i], us[i], vs[i], k, samplings[i], own));
  }
  OnEveryIsa([&](const Executor& executor) {
    std::vector<Guarded<float>> next, residual_out;
    std::vector<EncodeInput> sources;
    Correction correction{{}, kMomentum, own.nesterov, own.masked, -1.0f};
    for (size_t i = 0; i < tensors; ++i) {
      next.emplace_back(own.lengths[i]);
      residual_out.emplace_back(own.lengths[i]);
      sources.push_back({xs[i].data(), vs[i].data(), residual_out[i].data(), own.lengths[i]});
      correction.states.push_back({us[i].data(), next[i].data()});
    }
    Guarded<float> values(total);
    Guarded<int32_t> indices(total), counts(tensors);
    selection.values = values.data();
    selection.indices = indices.data();
    EXPECT(SampledKList(executor, sources, kMultiplier, correction, samplings, selection,
                        counts.data()),
           "finite");
    std::vector<float> all_values;
    std::vector<int32_t> all_indices;
    for (size_t i = 0; i < tensors; ++i) {
      Wanted one = wanted[i];
      EXPECT(counts[i] == int32_t(one.values.size()), "count of tensor %ld", long(i));
      one.values.resize(selection.ks[i]);
      one.indices.resize(selection.ks[i]);
      all_values.insert(all_values.end(), one.values.begin(), one.values.end());
      all_indices.insert(all_indices.end(), one.indices.begin(), one.indices.end());
      EXPECT(next[i].Equals(one.u) && next[i].Intact(), "u of tensor %ld", long(i));
      EXPECT(residual_out[i].Equals(one.acc) && residual_out[i].Intact(), "v of tensor %ld",
             long(i));
    }
    EXPECT(values.Equals(all_values) && values.Intact(), "values");
    EXPECT(indices.Equals(all_indices) && indices.Intact() && counts.Intact(), "indices");
  });
}

}  // namespace grace

int main() {
  for (const bool nesterov : {false, true}) {
    for (const bool masked : {false, true}) {
      grace::Check({{1, 2, 31, 33, 257, 4099, 70001, 5, 300007}, nesterov, masked});
    }
  }
  grace::Check({{(1 << 21) + 40, 17}, false, true});  // past the caches
  return grace::Finish("sampled top-k");
}
