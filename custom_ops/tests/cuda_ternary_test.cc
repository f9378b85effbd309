#include "device.h"
#include "kernels/codes/ternary.h"

namespace grace {

constexpr int32_t kWidths[] = {kTrits, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16};

std::vector<EncodeInput> Listed(const std::vector<int64_t>& lengths, const DeviceList& xs,
                                const DeviceList& residuals, int turn) {
  std::vector<EncodeInput> list;
  for (size_t i = 0; i < lengths.size(); ++i) {
    list.push_back({xs[i], turn % 3 == 0 ? residuals[i] : nullptr, nullptr, lengths[i]});
  }
  return list;
}

void CheckScales(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const DeviceList xs(lengths, kind, 1), residuals(DeviceList::Residuals(lengths, kind));
  const std::vector<EncodeInput> list = Listed(lengths, xs, residuals, turn);
  const float multiplier = turn % 2 ? 1.0f : 0.3f;
  const auto count = int64_t(lengths.size());
  const float clip = turn % 4 == 0 ? 0.0f : turn % 4 == 1 ? 1.0f : 2.5f;
  const DeviceList theirs({count}), ours({count});
  const bool finite = TernaryScales(Serial(), list, multiplier, clip, theirs[0]);
  OnOneOrder(turn / 4, [&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_ternary_scales, list.data(), count, multiplier, clip, ours[0], flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, n = %d, turn %d", order, int(lengths[0]), turn);
  });
}

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const DeviceList xs(lengths, kind, 1), residuals(DeviceList::Residuals(lengths, kind));
  const int32_t bits = kWidths[turn % 11];
  const float multiplier = turn % 2 ? 1.0f : 0.3f;
  int64_t size = 0;
  for (const int64_t n : lengths) size += TernaryWords(n, bits);
  const Guarded<uint32_t> theirs(size, 1), ours(size, 1);
  const std::vector<EncodeInput> list = Listed(lengths, xs, residuals, turn);
  std::vector<PhiloxKey> keys;
  Guarded<float> own(lengths.size()), scales(lengths.size());
  const float some[] = {2.0f, 1.0f, 0.0f, 1e-36f, 3e38f, 5e-39f};
  for (size_t i = 0; i < lengths.size(); ++i) {
    own[i] = some[(turn / 2 + i) % 6];
    scales[i] = some[(turn / 3 + i) % 5];
    keys.push_back({5, 3, 2, static_cast<uint32_t>(i << 8)});
  }
  TernaryEncode(Serial(), list, multiplier, own.data(), scales.data(), bits, keys, theirs.data());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_ternary_encode, list.data(), int64_t(list.size()), multiplier, own.data(),
             scales.data(), bits, keys.data(), ours.data());
    EXPECT(SameBytes(ours, theirs, size), "%s, n = %d, %d bits", order, int(lengths[0]), bits);
  });
}

// Any words and scales.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const int32_t bits = kWidths[turn % 11];
  const int64_t workers = 1 + turn % 4, count = lengths.size();
  const DeviceList theirs(lengths), ours(lengths), scales({workers * count}, kind, 3);
  const std::vector<DecodeOutput> expected = theirs.Targets(), list = ours.Targets();
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) {
    size += TernaryWords(lengths[i], bits);
  }
  const Guarded<uint32_t> words(workers * size, 1);
  std::mt19937 random(turn);
  for (int64_t i = 0; i < workers * size; ++i) words.data()[i] = random();
  const TernaryRows rows{words.data(), scales[0], workers};
  const float factor = turn % 3 ? 0.25f : 1.0f;
  const bool finite = TernaryDecode(Serial(), rows, expected, bits, factor);
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_ternary_decode, rows, list.data(), count, bits, factor, flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, %d bits", order, int(lengths[0]), bits);
    EXPECT(ours.Equals(theirs), "%s, n = %d, %d bits", order, int(lengths[0]), bits);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    CheckScales(lengths, kind, turn);
    CheckEncode(lengths, kind, turn);
    CheckDecode(lengths, kind, turn);
  };
  OnEveryCorner(check);
  // The corners above combine the largest lengths with some of the widths only.
  for (int i = 0; i < (kFewCases ? 0 : 22); ++i) {
    check({(1 << 20) + (i % 2 ? 1 : -1)}, Kind::kGradient);
  }
  for (int i = 0; i < 44; ++i) check({1900 + 7 * i, 0, 321}, Kind::kGradient);
  return Finish("cuda_ternary_test");
}
