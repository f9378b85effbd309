#include "device.h"
#include "kernels/low_rank/two_sided_low_rank.h"
#include "matrices.h"

namespace grace {

void CheckAlternate(const MatrixList& list, Kind kind, float multiplier, bool keep) {
  const Guarded<float> left = Some(kind, list.p, 4), right = Some(kind, list.q, 5);
  const Guarded<float> their_p(list.p), their_q(list.q), their_dense(list.dense);
  const Guarded<float> p(list.p), q(list.q), dense(list.dense);
  const DeviceList their_kept(list.lengths), residual_out(list.lengths);
  const bool finite = AlternateList(Serial(), list.Sources(keep ? &their_kept : nullptr, keep),
                                    multiplier, list.sizes, left.data(), right.data(),
                                    their_p.data(), their_q.data(), their_dense.data());
  const std::vector<EncodeInput> sources = list.Sources(keep ? &residual_out : nullptr, keep);
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    p.Spoil();
    q.Spoil();
    dense.Spoil();
    residual_out.Spoil();
    Launched(grace_cuda_alternate_list, sources.data(), list.count(), multiplier, list.sizes.data(),
             left.data(), right.data(), p.data(), q.data(), dense.data(), flag.data());
    EXPECT_OF(list, flag[0] == finite && flag.Intact(), order);
    EXPECT_OF(list, SameFloats(p, their_p, list.p) && SameFloats(q, their_q, list.q), order);
    EXPECT_OF(list, SameFloats(dense, their_dense, list.dense), order);
    EXPECT_OF(list, !keep || residual_out.Equals(their_kept), order);
  });
}

void CheckExpand(const MatrixList& list, Kind kind, float factor) {
  const Guarded<float> left = Some(kind, list.p, 4), right = Some(kind, list.q, 5);
  const Guarded<float> rest = Some(kind, list.p, 6), q = Some(kind, list.q, 7);
  const Guarded<float> dense = Some(kind, list.dense, 8);
  const DeviceList theirs(list.lengths), ours(list.lengths);
  const Factors bases{left.data(), right.data()};
  const bool finite = ExpandSidesList(Serial(), theirs.Targets(), list.sizes, bases, rest.data(),
                                      q.data(), dense.data(), factor);
  const std::vector<DecodeOutput> targets = ours.Targets();
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_expand_sides_list, targets.data(), list.count(), list.sizes.data(), bases,
             rest.data(), q.data(), dense.data(), factor, flag.data());
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
    CheckAlternate(list, kind, turn % 2 ? 1.0f : -0.7f, turn % 5);
    CheckExpand(list, kind, turn % 3 ? 1.0f : 0.3f);
  });
  return Finish("cuda_two_sided_low_rank_test");
}
