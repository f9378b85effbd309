#include <cmath>

#include "device.h"
#include "kernels/codes/quantiles.h"

namespace grace {

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, Quantiles quantiles,
                 float multiplier, bool keep, bool in_place) {
  int64_t size = 0;
  for (const int64_t n : lengths) size += PackedWords(n, IdBits(quantiles.buckets));
  const int64_t all_means = lengths.size() * quantiles.buckets;
  const Guarded<uint32_t> their_words(size), words(size);
  const Guarded<float> their_means(all_means), means(all_means);
  // Beyond the exponents that the first chunk lets expect.
  const auto end_large = [&](const DeviceList& xs) {
    for (int64_t i = 1; lengths[0] > 2048 && i < 99; ++i) {
      xs[0][lengths[0] - i] = std::ldexp(1.0f, static_cast<int>(i) - 40);
    }
  };
  const Gradients expected(lengths, kind, keep, in_place);
  end_large(expected.xs);
  const bool finite = EncodeQuantiles(Serial(), expected.sources, multiplier, quantiles,
                                      their_words.data(), their_means.data());
  OnEveryOrder([&](const char* order) {
    const Gradients given(lengths, kind, keep, in_place);
    end_large(given.xs);
    const std::vector<EncodeInput>& list = given.sources;
    Guarded<bool> flag(1);
    words.Spoil();
    means.Spoil();
    Launched(grace_cuda_encode_quantiles, list.data(), int64_t(list.size()), multiplier, quantiles,
             words.data(), means.data(), flag.data());
    const int n = static_cast<int>(lengths[0]), q = quantiles.buckets;
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, %d buckets", order, n, q);
    if (!finite) return;  // the sign of NaN is anything, and so is its id
    EXPECT(SameBytes(words, their_words, size), "%s, n = %d, %d buckets", order, n, q);
    EXPECT(SameFloats(means, their_means, all_means), "%s, n = %d, %d buckets", order, n, q);
    EXPECT(given.SameKept(expected), "%s, n = %d, %d buckets", order, n, q);
  });
}

// Any bits are taken.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, int32_t buckets, int64_t workers,
                 float factor) {
  int64_t size = 0;
  for (const int64_t n : lengths) size += PackedWords(n, IdBits(buckets));
  const Guarded<uint32_t> words(workers * size);
  std::mt19937 random(buckets);
  for (int64_t i = 0; i < workers * size; ++i) words.data()[i] = random();
  const Guarded<float> means(Values(kind, workers * lengths.size() * buckets, 1));
  const QuantileRows rows{words.data(), means.data(), workers};
  const DeviceList theirs(lengths), ours(lengths);
  const bool finite = DecodeQuantiles(Serial(), theirs.Targets(), rows, buckets, factor);
  const std::vector<DecodeOutput> list = ours.Targets();
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_quantiles, list.data(), int64_t(list.size()), &rows, buckets, factor,
             flag.data());
    EXPECT(flag[0] == finite, "%s, n = %d, %d buckets", order, int(lengths[0]), buckets);
    EXPECT(ours.Equals(theirs), "%s, n = %d, %d buckets", order, int(lengths[0]), buckets);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  // The first six are emulated. All nine have ids of every width.
  constexpr Quantiles kQuantiles[] = {{3, 1},    {256, 1}, {16, 8},   {5, 1},   {64, 16},
                                      {255, 51}, {32, 1},  {128, 32}, {100, 10}};
  int turn = 0;
  OnMostCorners([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    const Quantiles quantiles = kQuantiles[turn % (kFewCases ? 6 : 9)];
    if (kFewCases && turn % 7 && lengths[0] < 2000) return;
    CheckEncode(lengths, kind, quantiles, turn % 2 ? 1.0f : 0.3f, turn % 4 < 2, turn % 8 < 4);
    CheckDecode(lengths, kind, quantiles.buckets, 1 + turn % 3, turn % 2 ? 0.25f : -3.0f);
  });
  // Several pieces, and exponents outside the window.
  CheckEncode({(1 << 16) + 99, 4}, Kind::kAnyBits, {16, 1}, 1.0f, true, true);
  return Finish("cuda_quantiles_test");
}
