#include "kernels/base/weighted_sum.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct MixListOp {
  explicit MixListOp(const Attributes& attributes)
      : a(attributes.Float("a")), b(attributes.Float("b")) {}

  void Compute(const Call& call) const {
    std::vector<Mixed> list;
    for (int i = 0; i < call.outputs(); ++i) {
      float* mixed = call.Forward(i, i);  // before the Tensor below holds the input
      const Tensor x = call.Input(i);
      const float* y = call.Floats(call.outputs() + i, x.elements());
      list.push_back({x.data<float>(), y, mixed, x.elements()});
    }
    call.Run(GRACE_CUDA(mix_list), MixList, list, a, b);
  }

  float a, b;
};

const bool registered =
    Register<MixListOp>("Grace>MixList", {"xs: N * float", "ys: N * float"}, {"mixed: N * float"},
                        {"N: int >= 1", "a: float", "b: float"});

}  // namespace
}  // namespace grace
