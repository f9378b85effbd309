#include "kernels/base/philox.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct RandomOp {
  explicit RandomOp(const Attributes& attributes)
      : length(attributes.Int("length")),
        variable_draw(
            static_cast<uint32_t>(attributes.Int("variable") << 8 | attributes.Int("draw"))) {
    Require(length >= 0, "The length must not be negative.");
  }

  PhiloxKey Key(const Call& call) const {
    return {call.Word(0), call.Word(1), call.Word(2), variable_draw};
  }

  int64_t length;
  uint32_t variable_draw;
};

struct RandomWordsOp : RandomOp {
  using RandomOp::RandomOp;

  void Compute(const Call& call) const {
    const Tensor words = call.Vector(0, TF_INT32, length);
    RandomWords(call.executor(), Key(call), length, words.data<uint32_t>());
  }
};

struct UniformOp : RandomOp {
  using RandomOp::RandomOp;

  void Compute(const Call& call) const {
    const Tensor out = call.Vector(0, TF_FLOAT, length);
    Uniform(call.executor(), Key(call), length, out.data<float>());
  }
};

const bool registered[] = {
    Register<RandomWordsOp>({"Grace>RandomWords",
                             {"seed: int64", "worker: int64", "step: int64"},
                             {"words: int32"},
                             {"length: int", "variable: int", "draw: int"},
                             OneVector}),
    Register<UniformOp>({"Grace>Uniform",
                         {"seed: int64", "worker: int64", "step: int64"},
                         {"values: float"},
                         {"length: int", "variable: int", "draw: int"},
                         OneVector}),
};

}  // namespace
}  // namespace grace
