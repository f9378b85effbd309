#include <algorithm>
#include <limits>

#include "../kernels/finite.h"
#include "list_call.h"

namespace grace {
namespace {

struct AllFiniteOp {
  explicit AllFiniteOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const FloatList xs(call, 0, call.inputs());
    call.SetBool(0, AllFinite(call.executor(), xs.views()));
  }
};

struct NanUnlessListOp {
  explicit NanUnlessListOp(const ListAttributes&) {}

  void Compute(const ListCall& call) const {
    const int tensors = call.outputs();
    const bool finite = *call.Input(tensors, 0).data<bool>();
    for (int i = 0; i < tensors; ++i) {
      if (finite) {
        call.Updated(i);
        continue;
      }
      const Tensor output = call.Forward(i, i);
      std::fill_n(output.data<float>(), output.elements(),
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
};

const bool registered =
    Register<AllFiniteOp>(
        {"Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"}, OneScalar}) &&
    RegisterList<NanUnlessListOp>("Grace>NanUnlessList", {"xs: N * float", "finite: bool"},
                                  {"ys: N * float"}, {"N: int >= 1"});

}  // namespace
}  // namespace grace
