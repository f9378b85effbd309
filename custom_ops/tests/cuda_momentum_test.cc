// Tests the kernels of momentum_signs.h and weighted_sum.h, and ClipScales of momentum.h.
#include "device.h"
#include "kernels/base/weighted_sum.h"
#include "kernels/select/momentum.h"
#include "kernels/signs/momentum_signs.h"

namespace grace {

void CheckSigns(const std::vector<int64_t>& lengths, Kind kind, float multiplier, bool in_place) {
  const DeviceList momenta(lengths, kind, 2);
  int64_t size = 0;
  for (const int64_t n : lengths) size += PackedWords(n, 1);
  const Guarded<uint32_t> theirs(size), ours(size);
  const auto listed = [&](const DeviceList& xs, const DeviceList& residual_out) {
    std::vector<EncodeInput> list;
    for (size_t i = 0; i < lengths.size(); ++i) {
      list.push_back({xs[i], momenta[i], in_place ? xs[i] : residual_out[i], lengths[i]});
    }
    return list;
  };
  const auto placed = [&](const Guarded<uint32_t>& words) {
    std::vector<uint32_t*> places{words.data()};
    for (const int64_t n : lengths) places.push_back(places.back() + PackedWords(n, 1));
    return places;
  };
  const Momentum momentum{0.9f, 0.1f};
  const DeviceList rest(lengths, kind, 1), apart(lengths);
  const bool finite =
      MomentumSignList(Serial(), listed(rest, apart), multiplier, momentum, placed(theirs));
  OnEveryOrder([&](const char* order) {
    const DeviceList xs(lengths, kind, 1), residual_out(lengths);
    const std::vector<EncodeInput> list = listed(xs, residual_out);
    const std::vector<uint32_t*> words = placed(ours);
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_momentum_sign_list, list.data(), int64_t(list.size()), multiplier,
             &momentum, words.data(), flag.data());
    EXPECT(flag[0] == finite, "%s, n = %d", order, int(lengths[0]));
    EXPECT(SameBytes(ours, theirs, size), "%s, n = %d", order, int(lengths[0]));
    EXPECT((in_place ? xs : residual_out).Equals(in_place ? rest : apart), "%s, n = %d", order,
           int(lengths[0]));
  });
}

void CheckMix(const std::vector<int64_t>& lengths, Kind kind, float a, float b, bool in_place) {
  const DeviceList ys(lengths, kind, 2);
  const auto listed = [&](const DeviceList& xs, const DeviceList& out) {
    std::vector<Mixed> list;
    for (size_t i = 0; i < lengths.size(); ++i) {
      list.push_back({xs[i], ys[i], in_place ? xs[i] : out[i], lengths[i]});
    }
    return list;
  };
  const DeviceList their_xs(lengths, kind, 1), theirs(lengths);
  MixList(Serial(), listed(their_xs, theirs), a, b);
  OnEveryOrder([&](const char* order) {
    const DeviceList xs(lengths, kind, 1), ours(lengths);
    const std::vector<Mixed> list = listed(xs, ours);
    Launched(grace_cuda_mix_list, list.data(), int64_t(list.size()), a, b);
    EXPECT((in_place ? xs : ours).Equals(in_place ? their_xs : theirs), "%s, n = %d", order,
           int(lengths[0]));
  });
}

void CheckScales(const std::vector<int64_t>& lengths, Kind kind, float multiplier, float limit) {
  const DeviceList xs(lengths, kind, 1);
  std::vector<EncodeInput> list;
  for (size_t i = 0; i < lengths.size(); ++i) list.push_back({xs[i], nullptr, nullptr, lengths[i]});
  const Guarded<float> theirs(ClipScales(Serial(), list, multiplier, limit)), ours(list.size());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_clip_scales, list.data(), int64_t(list.size()), multiplier, limit,
             ours.data());
    EXPECT(SameFloats(ours, theirs, list.size()), "%s, n = %d, limit %g: %a, not %a", order,
           int(lengths[0]), limit, ours.data()[0], theirs.data()[0]);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  constexpr float kLimits[] = {0.5f, 1e-40f, 1e10f, 3e-6f};
  OnMostCorners([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    CheckSigns(lengths, kind, turn % 2 ? 1.0f : 0.3f, turn % 4 < 2);
    CheckScales(lengths, kind, turn % 2 ? 1.0f : 0.3f, kLimits[turn % 4]);
    CheckMix(lengths, kind, turn % 3 ? 0.25f : 1.0f, turn % 5 ? -1e-20f : 1.0f, turn % 4 < 2);
  });
  CheckScales({(1 << 19) + 5}, Kind::kGradient, 1.0f, 0.5f);  // more sums than a block has threads
  return Finish("cuda_momentum_test");
}
