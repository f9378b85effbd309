#include <algorithm>
#include <limits>

#include "kernels/base/finite.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

struct AllFiniteOp {
  explicit AllFiniteOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const FloatList xs(call, 0, call.inputs());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(all_finite), xs.views().data(), int64_t(xs.views().size()),
                      call.NewBool(0));
    }
    call.SetBool(0, AllFinite(call.executor(), xs.views()));
  }
};

struct NanUnlessListOp {
  explicit NanUnlessListOp(const ListAttributes&) {}

  void Compute(const ListCall& call) const {
    const int tensors = call.outputs();
    if (call.on_gpu()) return OnTheDevice(call);
    const bool finite = *call.Input(tensors, 0).data<bool>();
    for (int i = 0; i < tensors; ++i) {
      if (finite) {
        call.Updated(i);
        continue;
      }
      const Tensor output = call.Forward(i, i);
      std::fill_n(output.data<float>(), output.elements(), std::numeric_limits<float>::quiet_NaN());
    }
  }

 private:
  static void OnTheDevice(const ListCall& call) {
    std::vector<Tensor> outputs;
    std::vector<DecodeOutput> targets;
    for (int i = 0; i < call.outputs(); ++i) {
      outputs.push_back(call.Updated(i));
      targets.push_back({outputs.back().data<float>(), outputs.back().elements()});
    }
    const Tensor finite = call.Input(call.outputs(), 0);
    call.Run(GRACE_CUDA(nan_unless_list), targets.data(), int64_t(targets.size()),
             static_cast<const bool*>(finite.data<bool>()));
  }
};

const bool registered =
    Register<AllFiniteOp>(
        {"Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"}, OneScalar}) &&
    RegisterList<NanUnlessListOp>("Grace>NanUnlessList", {"xs: N * float", "finite: bool"},
                                  {"ys: N * float"}, {"N: int >= 1"}) &&
    OnGpu<AllFiniteOp>("Grace>AllFinite", {}) && ListOnGpu<NanUnlessListOp>("Grace>NanUnlessList");

}  // namespace
}  // namespace grace
