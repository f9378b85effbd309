#include <cmath>
#include <numeric>

#include "kernels/select/top_k.h"
#include "selections.h"

namespace grace {

// The results of a selection, between guards.
struct Selected {
  Guarded<float> values;
  Guarded<int32_t> indices, counts;
  Selection selection;

  explicit Selected(const std::vector<int64_t>& ks)
      : values(std::accumulate(ks.begin(), ks.end(), int64_t{0}), 1),
        indices(std::accumulate(ks.begin(), ks.end(), int64_t{0}), 3),
        counts(ks.size()),
        selection{ks, values.data(), indices.data()} {}

  bool Equals(const Selected& other, bool counted) const {
    const int64_t size = std::accumulate(selection.ks.begin(), selection.ks.end(), int64_t{0});
    return SameBytes(values, other.values, size) && SameBytes(indices, other.indices, size) &&
           (!counted || SameBytes(counts, other.counts, selection.ks.size()));
  }
};

// How a list is selected from. A threshold below 0: the largest.
struct Way {
  float multiplier, threshold;
  bool keep, in_place;
};

void Check(const std::vector<int64_t>& lengths, Kind kind, const std::vector<int64_t>& ks,
           Way way) {
  const Gradients expected(lengths, kind, way.keep, way.in_place);
  Selected theirs(ks);
  const bool all = way.threshold < 0;
  const bool finite = all ? TopKList(Serial(), expected.sources, way.multiplier, theirs.selection)
                          : ThresholdList(Serial(), expected.sources, way.multiplier, way.threshold,
                                          theirs.selection, theirs.counts.data());
  OnOrders(lengths[0], [&](const char* order) {
    const Gradients given(lengths, kind, way.keep, way.in_place);
    const std::vector<EncodeInput>& list = given.sources;
    Selected ours(ks);
    Guarded<bool> flag(1);
    if (all) {
      Launched(grace_cuda_top_k_list, list.data(), int64_t(list.size()), way.multiplier, ks.data(),
               ours.values.data(), ours.indices.data(), flag.data());
    } else {
      Launched(grace_cuda_threshold_list, list.data(), int64_t(list.size()), way.multiplier,
               way.threshold, ks.data(), ours.values.data(), ours.indices.data(),
               ours.counts.data(), flag.data());
    }
    const int n = int(lengths[0]), k = int(ks[0]);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(ours.Equals(theirs, !all), "%s, n = %d, k = %d, over %g", order, n, k, way.threshold);
    EXPECT(given.SameKept(expected), "%s, n = %d, k = %d, over %g", order, n, k, way.threshold);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  constexpr float kThresholds[] = {-1.0f, 0.0f, 0.5f, -1.0f, 1.2e-38f, 2.0f, 1e30f, INFINITY};
  int turn = 0;
  const auto check = [&](std::vector<int64_t> lengths, Kind kind) {
    // The emulation of a block takes long, so only some lengths and tensors are tested.
    const bool between = lengths.size() == 1 && lengths[0] > 66 && lengths[0] < 255;
    if (kFewCases && between && lengths[0] % 8) return;
    if (kFewCases && lengths.size() > 50) lengths.resize(50);
    ++turn;
    std::vector<int64_t> ks;
    for (const int64_t n : lengths) ks.push_back(CountOf(n, turn + int(ks.size())));
    const bool keep = turn % 3 != 0;
    Check(lengths, kind, ks, {turn % 2 ? 1.0f : 0.3f, kThresholds[turn % 8], keep, turn % 7 == 1});
  };
  OnEveryCorner(check, 1);
  for (const Kind kind : {Kind::kGradient, Kind::kAnyBits, Kind::kSpecial, Kind::kEqual}) {
    for (int i = 0; i < 5; ++i) check({40000, 3, 16384, 16385, 1}, kind);
  }
  return Finish("cuda_top_k_test");
}
