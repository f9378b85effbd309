#include "kernels/base/philox.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// One stream of a number of words.
struct RandomOp {
  explicit RandomOp(const Attributes& attributes)
      : length(attributes.Int("length")),
        variable_draw(
            static_cast<uint32_t>(attributes.Int("variable") << 8 | attributes.Int("draw"))) {
    Require(length >= 0, "The length must not be negative.");
  }

  PhiloxKey KeyOf(const Call& call) const {
    PhiloxKey key = Streams::KeyOf(call);
    key.variable_draw = variable_draw;
    return key;
  }

  int64_t length;
  uint32_t variable_draw;
};

struct RandomWordsOp : RandomOp {
  using RandomOp::RandomOp;

  void Compute(const Call& call) const {
    RandomWords(call.executor(), KeyOf(call), length, call.New<uint32_t>(0, {length}));
  }
};

struct UniformOp : RandomOp {
  using RandomOp::RandomOp;

  void Compute(const Call& call) const {
    Uniform(call.executor(), KeyOf(call), length, call.New<float>(0, {length}));
  }
};

const bool registered[] = {
    RegisterForCpu<RandomWordsOp>("Grace>RandomWords", {Streams::kInputs}, {"words: int32"},
                                  {"length: int", "variable: int", "draw: int"}, Vectors),
    RegisterForCpu<UniformOp>("Grace>Uniform", {Streams::kInputs}, {"values: float"},
                              {"length: int", "variable: int", "draw: int"}, Vectors),
};

}  // namespace
}  // namespace grace
