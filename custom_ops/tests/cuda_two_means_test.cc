#include <numeric>

#include "kernels/select/two_means.h"
#include "selections.h"

namespace grace {

int64_t Entries(const std::vector<int64_t>& ks) {
  return std::accumulate(ks.begin(), ks.end(), int64_t{0});
}

int64_t Words(const std::vector<int64_t>& ks) {
  int64_t words = 0;
  for (const int64_t k : ks) words += PackedWords(k, 1);
  return words;
}

// What a list sends, between guards.
struct Parts {
  Guarded<float> means;
  Guarded<uint32_t> signs;
  Guarded<int32_t> indices, counts;
  TwoMeans sent;

  explicit Parts(const std::vector<int64_t>& ks)
      : means(2 * ks.size(), 1),
        signs(Words(ks), 2),
        indices(Entries(ks), 3),
        counts(ks.size()),
        sent{ks, means.data(), signs.data(), indices.data(), counts.data()} {}

  bool Equals(const Parts& other) const {
    const int64_t tensors = sent.ks.size();
    return SameFloats(means, other.means, 2 * tensors) &&
           SameBytes(signs, other.signs, Words(sent.ks)) &&
           SameBytes(indices, other.indices, Entries(sent.ks)) &&
           SameBytes(counts, other.counts, tensors);
  }
};

struct Way {
  float multiplier;
  bool keep, in_place;
};

void Check(const std::vector<int64_t>& lengths, Kind kind, const std::vector<int64_t>& ks,
           Way way) {
  const Gradients expected(lengths, kind, way.keep, way.in_place);
  Parts theirs(ks);
  const bool finite = TwoMeansList(Serial(), expected.sources, way.multiplier, theirs.sent);
  OnOrders(lengths[0], [&](const char* order) {
    const Gradients given(lengths, kind, way.keep, way.in_place);
    const std::vector<EncodeInput>& list = given.sources;
    Parts ours(ks);
    Guarded<bool> flag(1);
    Launched(grace_cuda_two_means_list, list.data(), int64_t(list.size()), way.multiplier,
             ks.data(), ours.means.data(), ours.signs.data(), ours.indices.data(),
             ours.counts.data(), flag.data());
    const int n = int(lengths[0]), k = int(ks[0]), made = int(kind);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, kind %d", order, n, made);
    EXPECT(ours.Equals(theirs), "%s, n = %d, k = %d, kind %d", order, n, k, made);
    EXPECT(given.SameKept(expected), "%s, n = %d, k = %d, kind %d", order, n, k, made);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](std::vector<int64_t> lengths, Kind kind) {
    // The emulation of a block takes long, so only some lengths and tensors are tested.
    const bool between = lengths.size() == 1 && lengths[0] > 66 && lengths[0] < 255;
    if (kFewCases && between && lengths[0] % 8) return;
    if (kFewCases && lengths.size() > 30) lengths.resize(30);
    ++turn;
    std::vector<int64_t> ks;
    for (const int64_t n : lengths) ks.push_back(CountOf(n, turn + int(ks.size())));
    Check(lengths, kind, ks, {turn % 2 ? 1.0f : 0.3f, turn % 3 != 0, turn % 4 == 1});
  };
  OnMostCorners(check, 1);
  for (const Kind kind : {Kind::kGradient, Kind::kAnyBits, Kind::kSpecial, Kind::kEqual}) {
    for (int i = 0; i < 2; ++i) check({20000, 3, 16384, 1}, kind);
  }
  return Finish("cuda_two_means_test");
}
