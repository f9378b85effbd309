#include "kernels/codes/rotated_codes.h"

#include <cmath>

#include "garbage.h"

namespace grace {
namespace {

const std::vector<float> kFour = {0.12839503f, 0.38804830f, 0.65675912f, 0.94234026f,
                                  1.25623091f, 1.61804639f, 2.06901723f, 2.73258957f};
const std::vector<float> kFive = {0.06588966f, 0.19805183f, 0.33137831f, 0.46669952f,
                                  0.60493362f, 0.74713570f, 0.89456512f, 1.04878332f,
                                  1.21180438f, 1.38634034f, 1.57622808f, 1.78723322f,
                                  2.02872840f, 2.31773940f, 2.69111958f, 3.26073249f};

struct Sent {
  std::vector<uint32_t> words;
  std::vector<float> scales;
  std::vector<Guarded<float>> left;
  bool finite;
};

Sent Encode(const Executor& executor, const std::vector<std::vector<float>>& xs,
            const std::vector<PhiloxKey>& keys, const RotatedCode& code) {
  Sent sent;
  std::vector<EncodeInput> sources;
  std::vector<std::vector<float>> zeros;
  int64_t words = 0, scales = 0;
  for (const auto& x : xs) {
    const auto n = static_cast<int64_t>(x.size());
    zeros.emplace_back(n, 0.0f);
    sent.left.emplace_back(n, n % 3);
    words += code.WordsOf(n);
    scales += code.ScalesOf(n);
  }
  for (size_t t = 0; t < xs.size(); ++t) {
    sources.push_back(
        {xs[t].data(), zeros[t].data(), sent.left[t].data(), static_cast<int64_t>(xs[t].size())});
  }
  sent.words.resize(words);
  sent.scales.resize(scales);
  sent.finite =
      EncodeRotated(executor, sources, 1.0f, keys, code, sent.words.data(), sent.scales.data());
  return sent;
}

// What is left is what decoding does not give back, and its share of the energy is the codes'.
void TestRoundTrips(int32_t bits, const std::vector<float>& centroids, double most) {
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{1, 31, 33, 513, 2049}, {70001, 3}, {4096, 640}}) {
    for (const int64_t block : {32, 512, 2048}) {
      for (const bool least : {false, true}) {
        const RotatedCode code(bits, 64, block, least, centroids);
        std::vector<std::vector<float>> xs;
        std::vector<PhiloxKey> keys;
        for (const int64_t n : lengths) {
          xs.push_back(Gradient(n));
          keys.push_back({1, 0xffffffff, 3, static_cast<uint32_t>(n << 8)});
        }
        Sent first;
        OnEveryIsa([&](const Executor& executor) {
          Sent sent = Encode(executor, xs, keys, code);
          EXPECT(sent.finite, "block %ld", long(block));
          if (first.words.empty()) first = Encode(executor, xs, keys, code);
          EXPECT(sent.words == first.words && sent.scales == first.scales, "%ld", long(block));
          Outputs outputs(lengths);
          DecodeRotated(executor, outputs.targets, {sent.words.data(), sent.scales.data(), 1}, keys,
                        code, 1.0f);
          for (size_t t = 0; t < xs.size(); ++t) {
            double lost = 0, all = 0;
            bool same = sent.left[t].Intact();
            for (size_t i = 0; i < xs[t].size(); ++i) {
              const float left = sent.left[t][i];
              const float acc = SignedFlush(xs[t][i]) + 0.0f;  // the residual is zero
              same &= BitsOf(left) == BitsOf(SignedFlush(acc - outputs.targets[t].total[i]));
              lost += double(left) * left;
              all += double(xs[t][i]) * xs[t][i];
            }
            EXPECT(same, "block %ld, n = %ld", long(block), long(lengths[t]));
            EXPECT(lost <= (xs[t].size() > 500 ? most : 10 * most) * all, "%g of %g", lost, all);
          }
        });
      }
    }
  }
}

void TestWhatIsNotFinite() {
  const RotatedCode code(4, 64, 512, false, kFour);
  for (const uint32_t bad : {0x7f800000u, 0xff800000u, 0x7fc00000u}) {
    OnEveryIsa([&](const Executor& executor) {
      std::vector<std::vector<float>> xs = {Gradient(1600), Gradient(3)};
      xs[0][700] = FloatOf(bad);
      const Sent sent = Encode(executor, xs, {{}, {}}, code);
      EXPECT(!sent.finite && std::isfinite(sent.scales[0]) && std::isnan(sent.scales[1]), " ");
    });
  }
}

}  // namespace
}  // namespace grace

int main() {
  grace::TestRoundTrips(4, grace::kFour, 0.02);
  grace::TestRoundTrips(5, grace::kFive, 0.006);
  grace::TestWhatIsNotFinite();
  return grace::Finish("rotated codes");
}
