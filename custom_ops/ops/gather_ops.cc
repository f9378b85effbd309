#include "kernels/sparse/gather.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct GatherOp {
  explicit GatherOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const int count = call.outputs();
    for (int i = 0; i < count; ++i) {
      const Tensor x = call.Input(i, 1), indices = call.Input(count + i, 1);
      Require(Gather(call.executor(), x.data<float>(), x.size(), indices.data<int32_t>(),
                     indices.size(), call.New<float>(i, {indices.size()})),
              "An index is outside the tensor.");
    }
  }
};

const bool registered =
    RegisterForCpu<GatherOp>("Grace>Gather", {"xs: N * float", "indices: N * int32"},
                             {"values: N * float"}, {"N: int >= 1"}, Vectors);

}  // namespace
}  // namespace grace
