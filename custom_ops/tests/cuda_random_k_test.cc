#include <numeric>

#include "kernels/select/random_k.h"
#include "selections.h"

namespace grace {

// What a list sends, and how.
struct Sending {
  std::vector<int64_t> lengths, ks;
  std::vector<PhiloxKey> keys;
  Kind kind;
  float multiplier;
  bool keep, in_place;
  int64_t size = 0;

  Sending(const std::vector<int64_t>& own, Kind own_kind, int turn)
      : lengths(own),
        kind(own_kind),
        multiplier(turn % 2 ? 1.0f : 0.3f),
        keep(turn % 3),
        in_place(turn % 4 == 1) {
    for (const int64_t n : lengths) {
      const uint32_t tensor = uint32_t(ks.size());
      const int64_t counts[] = {CeilDiv(n, 100), n, 1, CeilDiv(2 * n, 3)};
      ks.push_back(counts[(turn + tensor) % 4]);
      keys.push_back({7, 0xffffffffu, uint32_t(turn), tensor << 8 | 3});
    }
    size = std::accumulate(ks.begin(), ks.end(), int64_t{0});
  }
};

void CheckEncode(const Sending& own) {
  const Gradients expected(own.lengths, own.kind, own.keep, own.in_place);
  const Guarded<float> theirs(own.size), ours(own.size, 1);
  const bool finite =
      RandomKList(Serial(), expected.sources, own.multiplier, own.keys, own.ks, theirs.data());
  OnOrders(own.lengths[0], [&](const char* order) {
    const Gradients given(own.lengths, own.kind, own.keep, own.in_place);
    const std::vector<EncodeInput>& list = given.sources;
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_random_k_list, list.data(), int64_t(list.size()), own.multiplier,
             own.keys.data(), own.ks.data(), ours.data(), flag.data());
    const int n = int(own.lengths[0]), k = int(own.ks[0]);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(SameBytes(ours, theirs, own.size), "%s, %d of %d", order, k, n);
    EXPECT(given.SameKept(expected), "%s, %d of %d are sent", order, k, n);
  });
}

void CheckDecode(const Sending& own, bool scaled, float factor) {
  const Guarded<float> values(Values(own.kind, own.size, 5), 2);
  std::vector<float> scales;
  for (size_t i = 0; scaled && i < own.ks.size(); ++i) scales.push_back(float(i) + 0.5f);
  const DeviceList theirs(own.lengths), ours(own.lengths);
  const std::vector<DecodeOutput> list = ours.Targets();
  const bool finite = ScatterRandomList(Serial(), theirs.Targets(), own.keys, own.ks, scales,
                                        values.data(), factor);
  OnOrders(own.lengths[0], [&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_scatter_random_list, list.data(), int64_t(list.size()), own.keys.data(),
             own.ks.data(), scaled ? scales.data() : nullptr, values.data(), factor, flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(own.lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, %d of %d", order, int(own.ks[0]), int(own.lengths[0]));
  });
}

void CheckIndices(const Sending& own) {
  const int64_t n = own.lengths[0], k = own.ks[0];
  const Guarded<int32_t> theirs(k), ours(k, 1);
  RandomIndices(Serial(), own.keys[0], n, k, theirs.data());
  OnOrders(n, [&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_random_indices, own.keys.data(), n, k, ours.data());
    EXPECT(SameBytes(ours, theirs, k), "%s, indices of %d of %d", order, int(k), int(n));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryCorner(
      [&](const std::vector<int64_t>& lengths, Kind kind) {
        const Sending own(lengths, kind, ++turn);
        CheckEncode(own);
        CheckDecode(own, turn % 3 == 0, turn % 5 ? 0.25f : -1.0f);
        CheckIndices(own);
      },
      1);
  return Finish("cuda_random_k_test");
}
