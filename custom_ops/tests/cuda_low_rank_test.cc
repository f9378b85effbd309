#include "device.h"
#include "kernels/low_rank/low_rank.h"
#include "matrices.h"

namespace grace {

// With `keep` and residuals M is written to our_kept. With `in_place` our_kept also holds the
// gradients, so they are copied there again before each order.
void CheckProject(const MatrixList& list, float multiplier, bool residual, bool keep,
                  bool in_place) {
  Guarded<float> theirs(list.p), ours(list.p), their_dense(list.dense), our_dense(list.dense);
  const DeviceList their_kept(list.lengths), our_kept(list.lengths);
  keep &= residual;
  const std::vector<const float*> qs = list.Qs();
  const bool finite = ProjectList(Serial(), list.Sources(keep ? &their_kept : nullptr, residual),
                                  multiplier, list.sizes, qs, theirs.data(), their_dense.data());
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    our_dense.Spoil();
    our_kept.Spoil();
    std::vector<EncodeInput> sources = list.Sources(keep ? &our_kept : nullptr, residual);
    for (size_t i = 0; keep && in_place && i < sources.size(); ++i) {
      std::copy_n(sources[i].x, list.lengths[i], our_kept[i]);
      sources[i].x = our_kept[i];
    }
    Launched(grace_cuda_project_list, sources.data(), list.count(), multiplier, list.sizes.data(),
             qs.data(), ours.data(), our_dense.data(), flag.data());
    EXPECT_OF(list, flag[0] == finite && flag.Intact(), order);
    EXPECT_OF(list, SameFloats(ours, theirs, list.p), order);
    EXPECT_OF(list, SameFloats(our_dense, their_dense, list.dense), order);
    EXPECT_OF(list, !keep || our_kept.Equals(their_kept), order);
  });
}

// With other factors or none. With `in_place` our_kept also holds the tensors, which then have no
// residuals; they are copied there again before each order.
void CheckReproject(const MatrixList& list, Kind kind, float multiplier, bool keep, bool in_place,
                    bool more) {
  Guarded<float> theirs(list.q), ours(list.q);
  const Guarded<float> p = Some(kind, list.p, 4);
  const Guarded<float> others_p = Some(kind, list.p, 5), others_q = Some(kind, list.q, 6);
  const Factors others = more ? Factors{others_p.data(), others_q.data()} : Factors{};
  const DeviceList their_kept(list.lengths), our_kept(list.lengths);
  const bool residual = keep && !in_place;
  ReprojectList(Serial(), list.Sources(keep ? &their_kept : nullptr, residual), multiplier,
                list.sizes, p.data(), theirs.data(), others);
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    our_kept.Spoil();
    std::vector<EncodeInput> sources = list.Sources(keep ? &our_kept : nullptr, residual);
    for (size_t i = 0; keep && in_place && i < sources.size(); ++i) {
      std::copy_n(sources[i].x, list.lengths[i], our_kept[i]);
      sources[i].x = our_kept[i];
    }
    Launched(grace_cuda_reproject_list, sources.data(), list.count(), multiplier, list.sizes.data(),
             p.data(), ours.data(), others);
    EXPECT_OF(list, SameFloats(ours, theirs, list.q), order);
    EXPECT_OF(list, !keep || our_kept.Equals(their_kept), order);
  });
}

void CheckExpand(const MatrixList& list, Kind kind, float factor) {
  const Guarded<float> p = Some(kind, list.p, 4), q = Some(kind, list.q, 5);
  const Guarded<float> dense = Some(kind, list.dense, 6);
  const DeviceList theirs(list.lengths), ours(list.lengths);
  const bool finite =
      ExpandList(Serial(), theirs.Targets(), list.sizes, p.data(), q.data(), dense.data(), factor);
  const std::vector<DecodeOutput> targets = ours.Targets();
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_expand_list, targets.data(), list.count(), list.sizes.data(), p.data(),
             q.data(), dense.data(), factor, flag.data());
    EXPECT_OF(list, flag[0] == finite && flag.Intact() && ours.Equals(theirs), order);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryMatrix([&](const std::vector<MatrixSize>& sizes, Kind kind) {
    ++turn;
    const MatrixList list(sizes, kind);
    const float multiplier = turn % 2 ? 1.0f : -0.7f;
    CheckProject(list, multiplier, turn % 4 < 2, turn % 3, turn % 5 < 2);
    CheckReproject(list, kind, multiplier, turn % 3, turn % 5 < 2, turn % 7 < 3);
    CheckExpand(list, kind, turn % 3 ? 1.0f : 0.3f);
  });
  return Finish("cuda_low_rank_test");
}
