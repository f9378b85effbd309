#include <numeric>

#include "kernels/select/sampled_top_k.h"
#include "selections.h"

namespace grace {

// How a list is sent.
struct Way {
  float multiplier, limit;
  bool remembers, corrects, nesterov, masked, in_place;
};

// The tensors of a list and what is sent of them; the same for the same arguments.
struct Run {
  const std::vector<int64_t>& lengths;
  const Way way;
  const DeviceList xs, residuals, us, residual_out, next;
  Guarded<float> values;
  Guarded<int32_t> indices, counts;
  std::vector<EncodeInput> sources;
  std::vector<MomentumState> states;

  Run(const std::vector<int64_t>& own, Kind kind, const Way& own_way, int64_t size)
      : lengths(own),
        way(own_way),
        xs(own, kind, 1),
        residuals(DeviceList::Residuals(own, kind)),
        us(own, kind, 3),
        residual_out(own),
        next(own),
        values(size, 1),
        indices(size, 3),
        counts(own.size()) {
    for (size_t i = 0; i < own.size(); ++i) {
      float* to = !way.remembers ? nullptr : way.in_place ? xs[i] : residual_out[i];
      sources.push_back({xs[i], way.remembers ? residuals[i] : nullptr, to, own[i]});
      if (way.corrects) states.push_back({us[i], way.in_place ? us[i] : next[i]});
    }
  }

  bool Equals(const Run& other, int64_t size) const {
    const bool sent = SameBytes(values, other.values, size) &&
                      SameBytes(indices, other.indices, size) &&
                      SameBytes(counts, other.counts, int64_t(lengths.size()));
    return sent && Same(way.remembers, residual_out, xs, other.residual_out, other.xs) &&
           Same(way.corrects, next, us, other.next, other.us);
  }

 private:
  bool Same(bool written, const DeviceList& apart, const DeviceList& own,
            const DeviceList& other_apart, const DeviceList& other_own) const {
    return !written || (way.in_place ? own.Equals(other_own) : apart.Equals(other_apart));
  }
};

void Check(const std::vector<int64_t>& lengths, Kind kind, const std::vector<int64_t>& ks,
           const std::vector<Sampling>& samplings, const Way& way) {
  constexpr float kMomentum = 0.9f;
  const int64_t size = std::accumulate(ks.begin(), ks.end(), int64_t{0});
  Run theirs(lengths, kind, way, size);
  const bool finite =
      SampledKList(Serial(), theirs.sources, way.multiplier,
                   {theirs.states, kMomentum, way.nesterov, way.masked, way.limit}, samplings,
                   {ks, theirs.values.data(), theirs.indices.data()}, theirs.counts.data());
  OnOrders(lengths[0], [&](const char* order) {
    Run ours(lengths, kind, way, size);
    Guarded<bool> flag(1);
    Launched(grace_cuda_sampled_k_list, ours.sources.data(), int64_t(lengths.size()),
             way.multiplier, way.corrects ? ours.states.data() : nullptr, kMomentum, way.nesterov,
             way.masked, way.limit, samplings.data(), ks.data(), ours.values.data(),
             ours.indices.data(), ours.counts.data(), flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs, size), "%s, %d of %d, sampled by %d, %s, limit %g", order,
           int(ks[0]), int(lengths[0]), int(samplings[0].stride),
           way.corrects ? "momentum" : "plain", way.limit);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  constexpr float kLimits[] = {-1.0f, 1.0f, 4.0f, 0.0f, 1e-38f, 1e30f};
  int turn = 0;
  const auto check = [&](std::vector<int64_t> lengths, Kind kind) {
    // The emulation of a block takes long, so only some lengths and tensors are tested.
    const bool between = lengths.size() == 1 && lengths[0] > 66 && lengths[0] < 255;
    if (kFewCases && between && lengths[0] % 8) return;
    if (kFewCases && lengths.size() > 50) lengths.resize(30);
    if (kFewCases && lengths[0] == (1 << 20) - 1) return;
    ++turn;
    std::vector<int64_t> ks;
    std::vector<Sampling> samplings;
    for (const int64_t n : lengths) {
      const int variant = turn + int(ks.size());
      const int64_t counts[] = {CeilDiv(n, 100), CeilDiv(n, 4), 1, n};
      const int64_t strides[] = {99, 7, 1, 2, 31};
      const int64_t k = counts[variant % 4], stride = std::min(n, strides[variant % 5]);
      const int64_t sampled = n / stride;
      // A rank that fits k, or one that gives a threshold far too high.
      const int64_t rank = variant % 3 ? CeilDiv(sampled * k, n) : 1;
      ks.push_back(k);
      samplings.push_back({stride, sampled, rank, {5, 6, uint32_t(turn), uint32_t(variant) << 8}});
    }
    const bool remembers = turn % 7 != 0, corrects = remembers && turn % 3 != 0;
    Check(lengths, kind, ks, samplings,
          {remembers && turn % 2 ? 0.7f : 1.0f, kLimits[turn % 6], remembers, corrects,
           turn % 4 < 2, turn % 8 < 4, turn % 5 == 1});
  };
  OnEveryCorner(check, 1);
  for (const Kind kind : {Kind::kGradient, Kind::kAnyBits, Kind::kSpecial, Kind::kEqual}) {
    for (int i = 0; i < 6; ++i) check({50000, 3, 16384, 16385, 1, 2500}, kind);
  }
  return Finish("cuda_sampled_top_k_test");
}
