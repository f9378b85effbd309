#include "../kernels/finite.h"
#include "op.h"

namespace grace {
namespace {

struct AllFiniteOp {
  explicit AllFiniteOp(const Attributes&) {}

  void Compute(const Call& call) const {
    bool finite = true;
    for (int i = 0; finite && i < call.inputs(); ++i) {
      const Tensor x = call.Input(i, 1);
      finite = AllFinite(call.executor(), x.data<float>(), x.size());
    }
    call.SetBool(0, finite);
  }
};

const bool registered = Register<AllFiniteOp>(
    {"Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"}, OneScalar});

}  // namespace
}  // namespace grace
