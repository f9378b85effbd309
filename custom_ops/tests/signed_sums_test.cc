#include "kernels/base/signed_sums.h"

#include <cmath>

#include "garbage.h"

namespace grace {
namespace {

const std::vector<std::vector<int64_t>> kLists = {{1}, {0, 33, 0, 7}, {5000, 4096, 1}, {70001, 3}};

std::vector<float> EndToEndOf(const std::vector<std::vector<float>>& xs) {
  std::vector<float> all;
  for (const auto& x : xs) all.insert(all.end(), x.begin(), x.end());
  return all;
}

// Each sum beside one that is computed element by element, in double.
void TestSumsAndSquares() {
  for (const std::vector<int64_t>& sizes : kLists) {
    std::vector<std::vector<float>> xs;
    std::vector<Floats> list;
    for (const int64_t n : sizes) xs.push_back(n ? Gradient(n) : std::vector<float>());
    for (const auto& x : xs) list.push_back({x.data(), static_cast<int64_t>(x.size())});
    const std::vector<float> all = EndToEndOf(xs);
    const auto total = static_cast<int64_t>(all.size());
    const PhiloxKey key{1, 2, 3, 4};
    std::vector<uint32_t> words(CeilDiv(total, kGroup));
    RandomWords(Serial(), key, words.size(), words.data());
    double square = 0;
    for (const float x : all) square += double(x) * x;
    OnEveryIsa([&](const Executor& executor) {
      for (const int64_t count : {int64_t{1}, int64_t{1025}, int64_t{9001}, total + 5}) {
        std::vector<double> wanted(count), sizes_of_sums(count);
        for (int64_t i = 0; i < total; ++i) {
          const bool minus = words[i / 32] >> (31 - i % 32) & 1;
          wanted[i % count] += minus ? -double(all[i]) : double(all[i]);
          sizes_of_sums[i % count] += std::fabs(all[i]);
        }
        Guarded<float> sums(count);
        const double found = SignedSums(executor, list, key, count, sums.data());
        bool right = std::fabs(found - square) <= 1e-12 * square;
        for (int64_t i = 0; i < count; ++i) {
          right &= std::fabs(sums[i] - wanted[i]) <= 1e-4 * sizes_of_sums[i];
        }
        EXPECT(right && sums.Intact(), "%ld elements, %ld sums", long(total), long(count));
      }
      Guarded<float> same(total);
      const double found = EndToEnd(executor, list, same.data());
      bool right = std::fabs(found - square) <= 1e-12 * square;
      for (int64_t i = 0; i < total; ++i) right &= same[i] == all[i];
      EXPECT(right && same.Intact(), "%ld elements", long(total));
    });
  }
}

}  // namespace
}  // namespace grace

int main() {
  grace::TestSumsAndSquares();
  return grace::Finish("signed sums");
}
