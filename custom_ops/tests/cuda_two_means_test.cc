#include <numeric>

#include "../kernels/two_means.h"
#include "device.h"

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

std::vector<Source> SourcesOf(const std::vector<int64_t>& lengths, const DeviceList& xs,
                              const DeviceList& residuals, const DeviceList& kept, Way way) {
  std::vector<Source> sources;
  for (size_t i = 0; i < lengths.size(); ++i) {
    float* to = !way.keep ? nullptr : way.in_place ? xs[i] : kept[i];
    sources.push_back({xs[i], way.keep ? residuals[i] : nullptr, to, lengths[i]});
  }
  return sources;
}

// All orders of threads for some lists, one in turn for the others: a test should not take long.
template <class Body>
void OnOrders(int64_t n, const Body& body) {
  if (n > 2000 && n <= 1 << 14) return OnEveryOrder(body);
  static int turn = 0;
  OnOneOrder(turn++, body);
}

void Check(const std::vector<int64_t>& lengths, Kind kind, const std::vector<int64_t>& ks,
           Way way) {
  const DeviceList residuals(DeviceList::Residuals(lengths, kind));
  const DeviceList xs(lengths, kind, 1), kept(lengths);
  Parts theirs(ks);
  const auto sources = SourcesOf(lengths, xs, residuals, kept, way);
  const bool finite = TwoMeansList(Serial(), sources, way.multiplier, theirs.sent);
  OnOrders(lengths[0], [&](const char* order) {
    const DeviceList own_xs(lengths, kind, 1), own_kept(lengths);
    const auto list = SourcesOf(lengths, own_xs, residuals, own_kept, way);
    Parts ours(ks);
    Guarded<bool> flag(1);
    Launched(grace_cuda_two_means_list, list.data(), int64_t(list.size()), way.multiplier,
             ks.data(), ours.means.data(), ours.signs.data(), ours.indices.data(),
             ours.counts.data(), flag.data());
    const int n = int(lengths[0]), k = int(ks[0]), made = int(kind);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, kind %d", order, n, made);
    EXPECT(ours.Equals(theirs), "%s, n = %d, k = %d, kind %d", order, n, k, made);
    const bool same = !way.keep || (way.in_place ? own_xs.Equals(xs) : own_kept.Equals(kept));
    EXPECT(same, "%s, n = %d, k = %d, kind %d", order, n, k, made);
  });
}

// How many of n are sent, in turn: few, many, one, all.
int64_t CountOf(int64_t n, int turn) {
  const int64_t ks[] = {CeilDiv(n, 100), CeilDiv(2 * n, 3), 1, n, CeilDiv(n, 7)};
  return ks[turn % 5];
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](std::vector<int64_t> lengths, Kind kind) {
    // A block for each tensor and kernel takes long: some lengths and tensors must do.
    if (lengths.size() == 1 && lengths[0] > 66 && lengths[0] < 255 && lengths[0] % 8) return;
    if (lengths.size() > 30) lengths.resize(30);
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
