#include <algorithm>
#include <limits>

#include "kernels/base/finite.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct AllFiniteOp {
  explicit AllFiniteOp(const Attributes&) {}

  void Compute(const Call& call) const {
    std::vector<Floats> xs;
    for (int i = 0; i < call.inputs(); ++i) {
      const Tensor x = call.Input(i);
      xs.push_back({x.data<float>(), x.elements()});
    }
    bool (*of_list)(const Executor&, const std::vector<Floats>&) = AllFinite;
    call.Run(GRACE_CUDA(all_finite), of_list, xs);
  }
};

struct NanUnlessListOp {
  explicit NanUnlessListOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const int tensors = call.outputs();
    const bool* finite = call.Given<bool>(tensors, {});
    std::vector<DecodeOutput> targets;
    for (int i = 0; i < tensors; ++i) {
      if (call.on_gpu() || *finite) {
        targets.push_back(call.Updated(i));
      } else {
        const int64_t n = call.Input(i).elements();
        std::fill_n(call.Forward(i, i), n, std::numeric_limits<float>::quiet_NaN());
      }
    }
    if (call.on_gpu()) {
      call.Launch(GRACE_CUDA(nan_unless_list), targets.data(), CountOf(targets), finite);
    }
  }
};

const bool registered[] = {
    Register<AllFiniteOp>("Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"},
                          OneScalar),
    Register<NanUnlessListOp>("Grace>NanUnlessList", {"xs: N * float", "finite: bool"},
                              {"ys: N * float"}, {"N: int >= 1"}),
};

}  // namespace
}  // namespace grace
