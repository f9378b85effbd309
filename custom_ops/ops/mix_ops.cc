#include "kernels/base/mix.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

struct MixListOp {
  explicit MixListOp(const ListAttributes& attributes)
      : a(attributes.Float("a")), b(attributes.Float("b")) {}

  void Compute(const ListCall& call) const {
    std::vector<Tensor> held;
    std::vector<Mixed> list;
    const int count = call.outputs();
    for (int i = 0; i < count; ++i) {
      held.push_back(call.Forward(i, i));  // before any other Tensor holds the input
      float* out = held.back().data<float>();
      held.push_back(call.Input(i));
      const float* x = held.back().data<float>();
      held.push_back(call.Input(count + i));
      Require(held.back().elements() == held[held.size() - 2].elements(),
              "Two tensors that are mixed must have the same shape.");
      list.push_back({x, held.back().data<float>(), out, held.back().elements()});
    }
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(mix_list), list.data(), int64_t(list.size()), a, b);
    }
    MixList(call.executor(), list, a, b);
  }

  float a, b;
};

const bool registered =
    RegisterList<MixListOp>("Grace>MixList", {"xs: N * float", "ys: N * float"},
                            {"mixed: N * float"}, {"N: int >= 1", "a: float", "b: float"}) &&
    ListOnGpu<MixListOp>("Grace>MixList");

}  // namespace
}  // namespace grace
