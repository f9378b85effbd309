#include "../kernels/finite.h"
#include "op.h"

namespace grace {
namespace {

struct AllFiniteOp {
  explicit AllFiniteOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const FloatList xs(call, 0, call.inputs());
    call.SetBool(0, AllFinite(call.executor(), xs.views()));
  }
};

const bool registered = Register<AllFiniteOp>(
    {"Grace>AllFinite", {"xs: N * float"}, {"finite: bool"}, {"N: int >= 1"}, OneScalar});

}  // namespace
}  // namespace grace
