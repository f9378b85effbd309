#include "device.h"
#include "kernels/base/finite.h"
#include "kernels/quantize/cast.h"
#include "kernels/quantize/narrow.h"

namespace grace {

int64_t TotalOf(const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t n : lengths) total += n;
  return total;
}

// Equal but for the bits of NaN.
bool SameHalves(const Guarded<uint16_t>& a, const Guarded<uint16_t>& b, int64_t n, Half type) {
  const int infinity = type == Half::kFloat16 ? 0x7c00 : 0x7f80;
  bool same = a.Intact();
  for (int64_t i = 0; i < n; ++i) {
    const int own = a.data()[i], other = b.data()[i];
    same &= own == other || ((own & 0x7fff) > infinity && (other & 0x7fff) > infinity);
  }
  return same;
}

void CheckCast(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const Half type = turn % 2 ? Half::kFloat16 : Half::kBfloat16;
  const float multiplier = turn % 3 ? 1.0f : 0.3f;
  const bool keep = turn % 4 < 2, in_place = turn % 8 == 1;
  const int64_t total = TotalOf(lengths);
  const Guarded<uint16_t> theirs(total, 1), ours(total, 1);
  const Gradients expected(lengths, kind, keep, in_place);
  const bool finite = CastList(Serial(), expected.sources, multiplier, type, theirs.data());
  OnEveryOrder([&](const char* order) {
    const Gradients given(lengths, kind, keep, in_place);
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_cast_list, given.sources.data(), int64_t(lengths.size()), multiplier, type,
             ours.data(), flag.data());
    const int n = int(lengths[0]);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(SameHalves(ours, theirs, total, type), "%s, n = %d, turn %d", order, n, turn);
    EXPECT(given.SameKept(expected), "%s, n = %d, turn %d", order, n, turn);
  });
}

void CheckUncast(const std::vector<int64_t>& lengths, int turn) {
  const Half type = turn % 2 ? Half::kFloat16 : Half::kBfloat16;
  const int64_t total = TotalOf(lengths);
  const Guarded<uint16_t> halves(total, 1);
  std::mt19937 random(turn);
  // In every third turn bit 14 is cleared. Then no exponent is all ones, so all numbers are finite.
  for (int64_t i = 0; i < total; ++i) halves.data()[i] = random() & (turn % 3 ? 0xffff : 0xbfff);
  const DeviceList theirs(lengths), ours(lengths);
  const std::vector<DecodeOutput> list = ours.Targets();
  const float factor = turn % 4 ? 0.25f : 3e-5f;
  const bool finite = UncastList(Serial(), theirs.Targets(), type, halves.data(), factor);
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_uncast_list, list.data(), int64_t(list.size()), type, halves.data(), factor,
             flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, n = %d, turn %d", order, int(lengths[0]), turn);
  });
}

// Every half there is.
void CheckAllHalves() {
  const Guarded<uint16_t> halves(1 << 16);
  for (int i = 0; i < 1 << 16; ++i) halves.data()[i] = i;
  const DeviceList theirs({1 << 16}), ours({1 << 16});
  for (const Half type : {Half::kFloat16, Half::kBfloat16}) {
    const DecodeOutput target{ours[0], 1 << 16};
    UncastList(Serial(), {{theirs[0], 1 << 16}}, type, halves.data(), 1.0f);
    OnEveryOrder([&](const char* order) {
      ours.Spoil();
      Guarded<bool> flag(1);
      Launched(grace_cuda_uncast_list, &target, int64_t{1}, type, halves.data(), 1.0f, flag.data());
      EXPECT(!flag[0] && ours.Equals(theirs), "%s, type %d", order, int(type));
    });
  }
}

void CheckFinite(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const DeviceList xs(lengths, kind, 1);
  std::vector<Floats> list;
  for (size_t i = 0; i < lengths.size(); ++i) list.push_back({xs[i], lengths[i]});
  if (turn % 2 && kind == Kind::kGradient) xs[0][lengths[0] - 1] = FloatOf(kInfinity);
  const bool finite = AllFinite(Serial(), list);
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    Launched(grace_cuda_all_finite, list.data(), int64_t(list.size()), flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
  });
}

void CheckNanUnless(const std::vector<int64_t>& lengths, Kind kind, bool finite) {
  const DeviceList given(lengths, kind, 1), ours(lengths);
  const std::vector<DecodeOutput> list = ours.Targets();
  Guarded<bool> flag(1);
  flag[0] = finite;
  OnEveryOrder([&](const char* order) {
    for (size_t i = 0; i < lengths.size(); ++i) std::copy_n(given[i], lengths[i], ours[i]);
    Launched(grace_cuda_nan_unless_list, list.data(), int64_t(list.size()), flag.data());
    if (!finite) {
      for (size_t i = 0; i < lengths.size(); ++i) {
        const auto is_nan = [](float x) { return x != x; };
        const bool spoiled = std::all_of(ours[i], ours[i] + lengths[i], is_nan);
        EXPECT(spoiled, "%s, n = %d", order, int(lengths[i]));
        std::copy_n(given[i], lengths[i], ours[i]);
      }
    }
    EXPECT(ours.Equals(given), "%s, n = %d", order, int(lengths[0]));
  });
}

void CheckNarrow(const std::vector<int64_t>& lengths, Kind kind) {
  const PhiloxKey key{5, 3, 2, 0};
  const DeviceList xs(lengths, kind, 1), wide(lengths), expected(lengths);
  const int64_t total = TotalOf(lengths);
  const Guarded<uint16_t> theirs(total, 1), ours(total, 1);
  std::vector<Narrowed> narrowed, list;
  std::vector<Widened> widened, back;
  int64_t at = 0;
  for (size_t i = 0; i < lengths.size(); at += lengths[i], ++i) {
    const auto draw = static_cast<uint32_t>(i << 8 | 1);
    narrowed.push_back({xs[i], theirs.data() + at, lengths[i], draw});
    list.push_back({xs[i], ours.data() + at, lengths[i], draw});
    widened.push_back({theirs.data() + at, expected[i], lengths[i]});
    back.push_back({theirs.data() + at, wide[i], lengths[i]});
  }
  const auto count = int64_t(lengths.size());
  ToHalvesList(Serial(), narrowed, key);
  FromHalvesList(Serial(), widened);
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    wide.Spoil();
    Launched(grace_cuda_to_halves_list, list.data(), count, &key);
    EXPECT(SameBytes(ours, theirs, total), "%s, n = %d", order, int(lengths[0]));
    Launched(grace_cuda_from_halves_list, back.data(), count);
    EXPECT(wide.Equals(expected), "%s, n = %d", order, int(lengths[0]));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  CheckAllHalves();
  OnEveryCorner([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    CheckCast(lengths, kind, turn);
    CheckUncast(lengths, turn);
    if (lengths[0]) CheckFinite(lengths, kind, turn);
    CheckNanUnless(lengths, kind, turn % 2);
    if (!kFewCases || lengths[0] < 100000) CheckNarrow(lengths, kind);
  });
  return Finish("cuda_cast_test");
}
