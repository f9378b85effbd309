#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/quantize/cast.h"
#include "kernels/select/random_k.h"
#include "kernels/select/top_k.h"
#include "kernels/sparse/scatter_list.h"
#include "testing.h"

namespace grace {

// x with a denormal replaced by the zero of its sign.
float SignedFlush(float x) {
  return (BitsOf(x) & kMagnitude) < kSmallestNormal ? FloatOf(BitsOf(x) & kSignBit) : x;
}

// A list with its residuals and its accs by their definition.
struct List {
  std::vector<std::vector<float>> xs, residuals, accs;
  std::vector<Guarded<float>> residual_out;
  std::vector<EncodeInput> sources;
  int64_t total = 0;

  List(const std::vector<int64_t>& lengths, float multiplier, bool remembers) {
    for (const int64_t n : lengths) {
      xs.push_back(Gradient(n));
      residuals.push_back(Gradient(n + 1));
      accs.push_back(xs.back());
      for (int64_t i = 0; i < n; ++i) {
        float& acc = accs.back()[i];
        if (multiplier != 1.0f) acc = SignedFlush(SignedFlush(acc) * multiplier);
        if (remembers) acc = SignedFlush(SignedFlush(acc) + SignedFlush(residuals.back()[i]));
      }
      residual_out.emplace_back(n);
      total += n;
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      sources.push_back({xs[i].data(), remembers ? residuals[i].data() : nullptr,
                         remembers ? residual_out[i].data() : nullptr, lengths[i]});
    }
  }

  // What is kept where sent[i] was taken out of tensor i.
  bool Kept(const std::vector<std::vector<float>>& sent) {
    for (size_t i = 0; i < sources.size(); ++i) {
      std::vector<float> wanted(accs[i]);
      for (size_t j = 0; j < wanted.size(); ++j) wanted[j] -= sent[i][j];
      if (sources[i].residual_out && !residual_out[i].Equals(wanted)) return false;
      if (!residual_out[i].Intact()) return false;
    }
    return true;
  }
};

std::vector<std::vector<int64_t>> ListsOfLengths() {
  std::vector<int64_t> shorts(130);
  std::iota(shorts.begin(), shorts.end(), 1);
  return {shorts, {1, 70000, 5, 4097, 1, 300007}, {(1 << 21) + 40, 17}};
}

// Calls body(executor, list, ks) for lists with and without products and residuals.
template <class Body>
void OnLists(const Body& body) {
  for (const std::vector<int64_t>& lengths : ListsOfLengths()) {
    std::vector<int64_t> ks;
    for (const int64_t n : lengths) ks.push_back(std::max<int64_t>(1, n / 50));
    for (const bool remembers : {false, true}) {
      for (const float multiplier : {1.0f, 0.7f}) {
        OnEveryIsa([&](const Executor& executor) {
          List list(lengths, multiplier, remembers);
          body(executor, list, multiplier, ks);
        });
      }
    }
  }
}

int64_t SumOf(const std::vector<int64_t>& ks) {
  return std::accumulate(ks.begin(), ks.end(), int64_t{0});
}

// The largest of one acc, as TopK defines them.
std::vector<int32_t> Largest(const std::vector<float>& x, int64_t k) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int32_t i) { return BitsOf(x[i]) & kMagnitude; };
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), [&](int32_t a, int32_t b) {
    return key(a) != key(b) ? key(a) > key(b) : a < b;
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Checks a selection of elements above `threshold`, or of all if it is below 0.
void CheckSelection(float threshold) {
  OnLists(
      [&](const Executor& executor, List& list, float multiplier, const std::vector<int64_t>& ks) {
        const int64_t total = SumOf(ks), tensors = ks.size();
        Guarded<float> values(total);
        Guarded<int32_t> indices(total), counts(tensors);
        const Selection selection{ks, values.data(), indices.data()};
        const bool finite = threshold < 0 ? TopKList(executor, list.sources, multiplier, selection)
                                          : ThresholdList(executor, list.sources, multiplier,
                                                          threshold, selection, counts.data());
        std::vector<float> wanted_values;
        std::vector<int32_t> wanted_indices, wanted_counts;
        std::vector<std::vector<float>> sent;
        for (int64_t i = 0; i < tensors; ++i) {
          sent.emplace_back(list.accs[i].size(), 0.0f);
          int32_t count = 0;
          for (const int32_t j : Largest(list.accs[i], ks[i])) {
            if (!(std::fabs(SignedFlush(list.accs[i][j])) > threshold)) continue;
            wanted_values.push_back(list.accs[i][j]);
            wanted_indices.push_back(j);
            sent[i][j] = Flush(list.accs[i][j]);
            ++count;
          }
          wanted_counts.push_back(count);
          wanted_values.resize(wanted_values.size() + ks[i] - count);
          wanted_indices.resize(wanted_indices.size() + ks[i] - count);
        }
        EXPECT(finite && values.Equals(wanted_values) && indices.Equals(wanted_indices) &&
                   values.Intact() && indices.Intact(),
               "threshold %g of %ld tensors", threshold, long(tensors));
        EXPECT(threshold < 0 || (counts.Equals(wanted_counts) && counts.Intact()), "counts");
        EXPECT(list.Kept(sent), "residual_out of a selection at %g", threshold);
      });
}

void TestFiniteFlag() {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    OnEveryIsa([&](const Executor& executor) {
      List list({3, 70000, 40}, 1.0f, true);
      list.xs[1][69999] = bad;
      Guarded<float> values(3);
      Guarded<int32_t> indices(3);
      EXPECT(!TopKList(executor, list.sources, 1.0f, {{1, 1, 1}, values.data(), indices.data()}),
             "a list with %g", bad);
      EXPECT(indices[1] == 69999 && list.residual_out[1][69999] != list.residual_out[1][69999],
             "%g goes", bad);
    });
  }
}

std::vector<PhiloxKey> KeysOf(int64_t tensors) {
  std::vector<PhiloxKey> keys;
  for (int64_t i = 0; i < tensors; ++i) keys.push_back({1, 2, 3, uint32_t(i << 8)});
  return keys;
}

void TestRandomIndices() {
  for (int64_t n : Lengths()) {
    for (const int64_t k : {int64_t{1}, (n + 2) / 3, n}) {
      std::vector<int32_t> first;
      OnEveryIsa([&](const Executor& executor) {
        Guarded<int32_t> indices(k);
        RandomIndices(executor, {7, 8, 9, 10}, n, k, indices.data());
        bool sound = indices.Intact() && indices[0] >= 0 && indices[k - 1] < n;
        for (int64_t i = 1; i < k; ++i) sound &= indices[i - 1] < indices[i];
        EXPECT(sound, "%ld of %ld", long(k), long(n));
        if (first.empty()) first.assign(indices.data(), indices.data() + k);
        EXPECT(indices.Equals(first), "%ld of %ld", long(k), long(n));
      });
    }
  }
}

void TestRandomK() {
  OnLists(
      [&](const Executor& executor, List& list, float multiplier, const std::vector<int64_t>& ks) {
        const std::vector<PhiloxKey> keys = KeysOf(ks.size());
        Guarded<float> values(SumOf(ks));
        EXPECT(RandomKList(executor, list.sources, multiplier, keys, ks, values.data()), "finite");
        std::vector<float> wanted;
        std::vector<std::vector<float>> sent, totals;
        std::vector<Guarded<float>> out;
        std::vector<DecodeOutput> targets;
        for (size_t i = 0; i < ks.size(); ++i) {
          std::vector<int32_t> indices(ks[i]);
          RandomIndices(Serial(), keys[i], list.sources[i].n, ks[i], indices.data());
          sent.emplace_back(list.accs[i].size(), 0.0f);
          totals.emplace_back(list.accs[i].size(), -0.0f);
          for (const int32_t j : indices) {
            wanted.push_back(list.accs[i][j]);
            sent[i][j] = Flush(list.accs[i][j]);
            totals[i][j] = SignedFlush(sent[i][j] * -3.0f);
          }
          out.emplace_back(list.sources[i].n);
          targets.push_back({out[i].data(), list.sources[i].n});
        }
        EXPECT(values.Equals(wanted) && values.Intact() && list.Kept(sent), "random k");
        EXPECT(ScatterRandomList(executor, targets, keys, ks, {}, values.data(), -3.0f), "finite");
        for (size_t i = 0; i < ks.size(); ++i) {
          EXPECT(out[i].Equals(totals[i]) && out[i].Intact(), "total %ld", long(i));
        }
      });
}

void TestScatterFaults() {
  std::vector<Guarded<float>> out;
  std::vector<DecodeOutput> targets;
  for (int i = 0; i < 2; ++i) {
    out.emplace_back(10);
    targets.push_back({out[i].data(), 10});
  }
  const std::vector<float> values(3, 1.0f);
  const auto fault = [&](std::vector<int32_t> indices) {
    bool finite;
    const Entries entries{values.data(), indices.data(), nullptr, 1, {1, 2}};
    const std::string text = ScatterList(Serial(), targets, entries, 1.0f, &finite);
    EXPECT(out[0].Intact() && out[1].Intact(), "scatter");
    const std::string other =
        RefineList(Serial(), targets, indices.data(), values.data(), values.data(), {1, 2});
    EXPECT(text == other, "%s", other.c_str());
    return text;
  };
  EXPECT(fault({9, 1, 2}).empty(), "inside");
  EXPECT(fault({10, 1, 2}).find("Index 10 is outside tensor 0") == 0, "beyond");
  EXPECT(fault({9, -1, 2}).find("Index -1 is outside tensor 1") == 0, "below");
  EXPECT(fault({9, 2, 2}).find("A worker's indices into tensor 1") == 0, "twice");
}

// The half nearest to x, by trying both neighbours of what cutting off gives.
uint16_t NearestFloat16(float x) {
  const uint16_t sign = BitsOf(x) >> 31 << 15;
  const double a = std::fabs(x);
  if (a != a) return 0x7e00;
  if (a >= 65520.0) return sign | 0x7c00;
  const int exponent = std::max(-14, a > 0 ? std::ilogb(a) : -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  const double steps = std::nearbyint(a / unit);  // ties to even
  const double value = steps * unit;
  if (value < std::ldexp(1.0, -14)) return sign | uint16_t(steps);
  const int own = std::ilogb(value);
  return sign | uint16_t((own + 15) << 10 | (int(value / std::ldexp(1.0, own - 10)) & 0x3ff));
}

void TestCasts() {
  std::mt19937 random(5);
  std::vector<float> x(100003);
  for (float& value : x) value = FloatOf(random());
  for (uint32_t i = 0; i < 50000; ++i) x[i] = FloatOf(0x33000000u + 4097 * i + random() % 3);
  const int64_t n = x.size();
  for (const bool bypass : {false, true}) {
    const int64_t copies = bypass ? 22 : 1;
    std::vector<EncodeInput> sources(copies, {x.data(), nullptr, nullptr, n});
    std::vector<uint16_t> first[2];
    OnEveryIsa([&](const Executor& executor) {
      for (const Half type : {Half::kFloat16, Half::kBfloat16}) {
        Guarded<uint16_t> halves(copies * n);
        EXPECT(!CastList(executor, sources, 1.0f, type, halves.data()), "not finite");
        std::vector<uint16_t>& wanted = first[type == Half::kBfloat16];
        if (wanted.empty()) wanted.assign(halves.data(), halves.data() + copies * n);
        EXPECT(halves.Equals(wanted) && halves.Intact(), "casts");
        for (int64_t i = 0; type == Half::kFloat16 && i < n; ++i) {
          const uint16_t half = NearestFloat16(x[i]), got = halves[i];
          const bool nan = (half & 0x7fff) > 0x7c00 && (got & 0x7fff) > 0x7c00;
          EXPECT(got == half || nan, "float16 of %a is %x, not %x", x[i], got, half);
        }
        // Every half comes back from its own float.
        std::vector<uint16_t> every(1 << 16);
        std::iota(every.begin(), every.end(), 0);
        Guarded<float> floats(1 << 16);
        Guarded<uint16_t> back(1 << 16);
        UncastList(executor, {{floats.data(), 1 << 16}}, type, every.data(), 1.0f);
        CastList(executor, {{floats.data(), nullptr, nullptr, 1 << 16}}, 1.0f, type, back.data());
        for (int64_t i = 0; i < 1 << 16; ++i) {
          const uint16_t infinity = type == Half::kFloat16 ? 0x7c00 : 0x7f80, key = i & 0x7fff;
          // As floats the denormals of bfloat16 are denormal, so the product makes them zero.
          const bool zero = type == Half::kBfloat16 && key < 0x80;
          const uint16_t wanted_half = zero ? i & 0x8000 : i;
          EXPECT(key > infinity ? (back[i] & 0x7fff) > infinity : back[i] == wanted_half,
                 "half %lx comes back as %x", long(i), back[i]);
        }
      }
    });
  }
}

}  // namespace grace

int main() {
  grace::CheckSelection(-1.0f);
  for (const float threshold : {0.0f, 0.5f, 2.5f, 1e-40f}) grace::CheckSelection(threshold);
  grace::TestFiniteFlag();
  grace::TestRandomIndices();
  grace::TestRandomK();
  grace::TestScatterFaults();
  grace::TestCasts();
  return grace::Finish("sparse lists");
}
