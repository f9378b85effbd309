#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scales.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct BlockScalesOp {
  explicit BlockScalesOp(const Attributes& attributes)
      : block(attributes.Int("block")), norm(attributes.Bool("l2") ? Norm::kL2 : Norm::kMax) {
    Require(block >= 1, "A block must have at least one element.");
  }

  void Compute(const Call& call) const {
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor x = call.Input(i, 1);
      const Tensor scales = call.Vector(i, TF_FLOAT, CeilDiv(x.size(), block));
      if (x.size() == 0) continue;
      BlockScales(call.executor(), x.data<float>(), x.size(), block, norm, scales.data<float>());
    }
  }

  int64_t block;
  Norm norm;
};

Quantization ReadQuantization(const Attributes& attributes) {
  const int64_t levels = attributes.Int("levels"), bits = attributes.Int("bits");
  const int64_t block = attributes.Int("block");
  Require(bits >= 2 && bits <= 16, "There must be 2 to 16 bits.");
  Require(levels >= 1 && 2 * levels < int64_t{1} << bits, "The levels do not fit into the bits.");
  Require(block >= 1, "A block must have at least one element.");
  return {static_cast<int32_t>(levels), static_cast<int32_t>(bits), block};
}

struct QuantizeOp {
  explicit QuantizeOp(const Attributes& attributes)
      : quantization(ReadQuantization(attributes)),
        stochastic(attributes.Bool("stochastic")),
        variables(attributes.Ints("variables")),
        draw(attributes.Int("draw")) {}

  void Compute(const Call& call) const {
    const int count = call.outputs();
    Require(count == static_cast<int>(variables.size()), "Every input needs its variable.");
    PhiloxKey key{call.Word(2 * count), call.Word(2 * count + 1), call.Word(2 * count + 2), 0};
    for (int i = 0; i < count; ++i) {
      const Tensor x = call.Input(i, 1), scales = call.Input(count + i, 1);
      Require(scales.size() == CeilDiv(x.size(), quantization.block),
              "There must be one scale for each block.");
      const Tensor words = call.Vector(i, TF_INT32, PackedWords(x.size(), quantization.bits));
      key.variable_draw = static_cast<uint32_t>(variables[i] << 8 | draw);
      Quantize(call.executor(), x.data<float>(), scales.data<float>(), x.size(), quantization,
               stochastic ? &key : nullptr, words.data<uint32_t>());
    }
  }

  Quantization quantization;
  bool stochastic;
  std::vector<int64_t> variables;
  int64_t draw;
};

const bool registered[] = {
    Register<BlockScalesOp>({"Grace>BlockScales",
                             {"xs: N * float"},
                             {"scales: N * float"},
                             {"N: int >= 1", "block: int", "l2: bool"},
                             Vectors<1, 1>}),
    Register<QuantizeOp>(
        {"Grace>Quantize",
         {"xs: N * float", "scales: N * float", "seed: int64", "worker: int64", "step: int64"},
         {"words: N * int32"},
         {"N: int >= 1", "levels: int", "bits: int", "block: int", "stochastic: bool",
          "variables: list(int)", "draw: int"},
         Vectors<2, 1, 3>}),
};

}  // namespace
}  // namespace grace
