#include "kernels/base/philox.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// One stream of a number of words.
struct RandomOp : Stream {
  explicit RandomOp(const Attributes& attributes)
      : Stream(attributes), length(attributes.Int("length")) {
    Require(length >= 0, "The length must not be negative.");
  }

  int64_t length;
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
                                  {"length: int", Stream::kAttributes}, Vectors),
    RegisterForCpu<UniformOp>("Grace>Uniform", {Streams::kInputs}, {"values: float"},
                              {"length: int", Stream::kAttributes}, Vectors),
};

}  // namespace
}  // namespace grace
