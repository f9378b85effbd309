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
      if (call.on_gpu()) {
        targets.push_back(call.Updated(i));
      } else if (*finite) {
        call.Share(i, i);
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

// No tensor is copied. TensorFlow's own way is a condition that every tensor goes into, which is
// several nodes of the graph for each.
struct NextOrLastListOp {
  explicit NextOrLastListOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const int tensors = call.outputs();
    const int first = *call.Given<bool>(0, {}) ? 1 : 1 + tensors;
    for (int i = 0; i < tensors; ++i) call.Share(i, first + i);
  }
};

const bool registered[] = {
    Register<NextOrLastListOp>("Grace>NextOrLastList", {"when: bool; next: dtypes; last: dtypes"},
                               {"kept: dtypes"}, {"dtypes: list(type) >= 1"}),
    Register<AllFiniteOp>("Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"},
                          OneScalar),
    Register<NanUnlessListOp>("Grace>NanUnlessList", {"xs: N * float", "finite: bool"},
                              {"ys: N * float"}, {"N: int >= 1"}),
};

}  // namespace
}  // namespace grace
