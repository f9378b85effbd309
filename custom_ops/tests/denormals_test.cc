// No result depends on whether the processor treats denormals as zero.
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scales.h"
#include "kernels/signs/signs.h"
#include "kernels/sparse/gather.h"
#include "lists_of_one.h"
#include "testing.h"

namespace grace {

// Many values around the smallest normal number, and scales whose quotients are as small.
std::vector<float> Tiny(int64_t n) {
  std::mt19937 random(9);
  std::vector<float> x(n);
  for (float& value : x) value = FloatOf(random() & 0x81ffffff);
  return x;
}

struct Results {
  std::vector<uint32_t> words, signs;
  std::vector<float> scales, values, sum, scattered;

  bool operator==(const Results& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
    };
    return words == other.words && signs == other.signs && same(scales, other.scales) &&
           same(values, other.values) && same(sum, other.sum) && same(scattered, other.scattered);
  }
};

Results Everything(const Executor& executor, const std::vector<float>& x,
                   const std::vector<float>& scales, const PhiloxKey* key) {
  const int64_t n = x.size(), blocks = scales.size() / 2, k = n / 2;
  const Quantization quantization{3, 3, CeilDiv(n, blocks)};
  Results r;
  r.words.resize(2 * PackedWords(n, 3));
  r.signs.resize(PackedWords(n, 1));
  r.scales.resize(blocks);
  r.values.resize(n);
  r.sum.resize(n);
  r.scattered.resize(n);
  BlockScales(executor, x.data(), n, quantization.block, Norm::kL2, r.scales.data());
  Quantize(executor, x.data(), scales.data(), n, quantization, key, r.words.data());
  std::copy_n(r.words.begin(), r.words.size() / 2, r.words.begin() + r.words.size() / 2);
  DequantizeSum(executor, r.words.data(), scales.data(), 1, n, quantization, r.values.data());
  DequantizeSum(executor, r.words.data(), scales.data(), 2, n, quantization, r.sum.data());
  PackSigns(executor, x.data(), n, r.signs.data());
  std::vector<int32_t> indices(2 * k);
  for (int64_t i = 0; i < 2 * k; ++i) indices[i] = static_cast<int32_t>(i % k);
  ScatterSum(executor, x.data(), indices.data(), nullptr, 2, k, n, r.scattered.data());
  return r;
}

void TestBothModes() {
  const std::vector<float> x = Tiny(10000);
  std::vector<float> scales;
  // Two workers' scales of ten blocks: tiny, huge, and so close that their differences vanish.
  for (const float scale : {0x1p-126f, 0x1p-112f, 0x1p-110f, 0x1.8p-110f, 0x1p-100f, 1.0f, 0x1p125f,
                            0x1p126f, 0x1.8p127f, 0x1.fffffep127f}) {
    scales.push_back(scale);
  }
  for (int i = 0; i < 10; ++i) scales.push_back(-0.9999f * scales[i]);
  const PhiloxKey key{1, 2, 3, 4};
  for (const PhiloxKey* own : {&key, static_cast<const PhiloxKey*>(nullptr)}) {
    OnEveryIsa([&](const Executor& executor) {
      const Results plain = Everything(executor, x, scales, own);
      const DenormalsAreZero scope;
      EXPECT(Everything(executor, x, scales, own) == plain, "stochastic %d", own != nullptr);
    });
  }
}

}  // namespace grace

int main() {
  grace::TestBothModes();
  return grace::Finish("denormals");
}
