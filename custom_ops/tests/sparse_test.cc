#include <algorithm>
#include <numeric>

#include "kernels/select/top_k.h"
#include "kernels/sparse/gather.h"
#include "kernels/sparse/scatter_list.h"
#include "lists_of_one.h"
#include "testing.h"

namespace grace {

bool Says(const std::string& fault, const char* word) {
  return fault.find(word) != std::string::npos;
}

std::vector<int32_t> Largest(const std::vector<float>& x, int64_t k) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int32_t i) { return BitsOf(x[i]) & kMagnitude; };
  const auto larger = [&](int32_t a, int32_t b) {
    return key(a) != key(b) ? key(a) > key(b) : a < b;
  };
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), larger);
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

void CheckTopK(const std::vector<float>& x, int64_t k, const char* kind) {
  const std::vector<int32_t> wanted = Largest(x, k);
  OnEveryIsa([&](const Executor& executor) {
    Guarded<float> values(k);
    Guarded<int32_t> indices(k);
    TopK(executor, x.data(), x.size(), k, values.data(), indices.data());
    bool same = values.Intact() && indices.Intact() && indices.Equals(wanted);
    for (int64_t i = 0; same && i < k; ++i) same = BitsOf(values[i]) == BitsOf(x[indices[i]]);
    EXPECT(same, "top %ld of %ld, %s", long(k), long(x.size()), kind);
  });
}

void TestTopK() {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = Gradient(n);
    for (const int64_t k : {int64_t{1}, n / 100, n / 3, n}) {
      if (k >= 1) CheckTopK(x, k, "gradient");
    }
  }
}

void TestTopKOnHardData() {
  const int64_t n = 300007;
  std::mt19937 random(2);
  std::vector<float> clustered(n), equal(n, -2.0f), two(n), any(n), rising(n);
  for (int64_t i = 0; i < n; ++i) {
    clustered[i] = float(random() % 1000) * (i > 1000 && i < 9000 ? 1.0f : 1e-6f);
    two[i] = random() % 50 ? 1.0f : 2.0f;
    any[i] = FloatOf(random());
    rising[i] = float(i);
  }
  for (const int64_t k : {int64_t{1}, int64_t{300}, int64_t{3000}, n / 4, n / 2, n}) {
    CheckTopK(clustered, k, "clustered");
    CheckTopK(equal, k, "equal");
    CheckTopK(two, k, "two values");
    CheckTopK(any, k, "any bits");
    CheckTopK(rising, k, "rising");
  }
}

void TestGather() {
  const std::vector<float> x = Gradient(1000);
  const std::vector<int32_t> indices = {0, 999, 5, 5, 17};
  Guarded<float> values(5);
  EXPECT(Gather(Serial(), x.data(), 1000, indices.data(), 5, values.data()), "inside");
  for (int i = 0; i < 5; ++i) EXPECT(BitsOf(values[i]) == BitsOf(x[indices[i]]), "value %d", i);
  for (const int32_t outside : {-1, 1000, INT32_MIN, INT32_MAX}) {
    EXPECT(!Gather(Serial(), x.data(), 1000, &outside, 1, values.data()), "index %d", outside);
  }
  EXPECT(values.Intact(), "gather");
}

void TestScatterSum() {
  for (const int64_t n : {1, 33, 999, 200001}) {
    const int64_t workers = 3, k = std::max<int64_t>(1, n / 3);
    std::vector<float> values = Gradient(workers * k);
    std::vector<int32_t> indices;
    for (int64_t w = 0; w < workers; ++w) {
      for (int64_t i = 0; i < k; ++i) indices.push_back(int32_t(n < 9 ? i : 3 * i + w));
    }
    const std::vector<int32_t> counts = {int32_t(k), int32_t(k / 2), -1};
    for (const bool counted : {false, true}) {
      std::vector<float> wanted(n, 0.0f);
      for (int64_t w = 0; w < workers; ++w) {
        const int64_t used = counted ? std::max(0, counts[w]) : k;
        for (int64_t i = 0; i < used; ++i) {
          float& total = wanted[indices[w * k + i]];
          total = Flush(total + Flush(values[w * k + i]));
        }
      }
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> out(n);
        const int32_t* used = counted ? counts.data() : nullptr;
        const std::string fault =
            ScatterSum(executor, values.data(), indices.data(), used, workers, k, n, out.data());
        EXPECT(fault.empty() && out.Equals(wanted) && out.Intact(), "n = %ld", long(n));
      });
    }
  }
}

void TestScatterRefuses() {
  const std::vector<float> values(3, 1.0f);
  const auto scatter = [&](std::vector<int32_t> indices) {
    Guarded<float> out(10);
    const std::string fault =
        ScatterSum(Serial(), values.data(), indices.data(), nullptr, 1, 3, 10, out.data());
    EXPECT(out.Intact(), "scatter");
    return fault;
  };
  EXPECT(scatter({0, 1, 9}).empty(), "inside");
  EXPECT(Says(scatter({0, 1, 10}), "outside"), "beyond");
  EXPECT(Says(scatter({-1, 1, 2}), "outside"), "below");
  EXPECT(Says(scatter({5, -7, 2}), "outside"), "below, unordered");
  EXPECT(Says(scatter({0, 2, 1}), "ascend"), "unordered");
  EXPECT(Says(scatter({0, 2, 2}), "ascend"), "twice");
}

void TestRefineDenormals() {
  const std::vector<float> values{1e-40f, -1e-40f, -0.0f, 1.0f, 1e-40f};
  const std::vector<float> decoded{0.0f, 1e-40f, -0.0f, -1e-40f, 0.5f};
  const std::vector<float> wanted{0.0f, -0.0f, -0.0f, 1.0f, -0.5f};
  const std::vector<int32_t> indices{0, 1, 2, 3, 4};
  Guarded<float> residual_out(5);
  RefineList(Serial(), {{residual_out.data(), 5}}, indices.data(), values.data(), decoded.data(),
             {5});
  EXPECT(residual_out.Equals(wanted) && residual_out.Intact(), "denormal values");
}

}  // namespace grace

int main() {
  grace::TestTopK();
  grace::TestTopKOnHardData();
  grace::TestGather();
  grace::TestScatterSum();
  grace::TestScatterRefuses();
  grace::TestRefineDenormals();
  return grace::Finish("sparse");
}
