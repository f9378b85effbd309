#include "kernels/codes/byte_codes.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

int64_t ReadBlock(const ListAttributes& attributes) {
  const int64_t block = attributes.Int("block");
  Require(block >= 0 && block % kGroup == 0,
          "A block must be a multiple of 32 elements, or 0 for whole tensors.");
  return block;
}

int64_t BlocksOf(int64_t n, int64_t block) { return block ? CeilDiv(n, block) : 1; }

struct EncodeTreeListOp {
  explicit EncodeTreeListOp(const ListAttributes& attributes)
      : tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")),
        block(ReadBlock(attributes)) {}

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, residuals, 2);
    int64_t codes_size = 0, scales_size = 0;
    for (const EncodeInput& own : list.sources()) {
      codes_size += ByteWords(own.n);
      scales_size += BlocksOf(own.n, block);
    }
    const Tensor codes = call.Vector(0, TF_INT32, codes_size);
    const Tensor scales = call.Vector(1, TF_FLOAT, scales_size);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(encode_tree), list.sources().data(), int64_t{tensors}, multiplier,
                      block, codes.data<uint32_t>(), scales.data<float>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, EncodeTree(call.executor(), list.sources(), multiplier, block,
                                                codes.data<uint32_t>(), scales.data<float>()));
  }

  int tensors, residuals;
  float multiplier;
  int64_t block;
};

struct EncodePowersListOp {
  explicit EncodePowersListOp(const ListAttributes& attributes)
      : tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")),
        variables(attributes.Ints("variables")),
        draw(attributes.Int("draw")) {
    Require(static_cast<int>(variables.size()) == tensors, "Every tensor needs its variable.");
  }

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, residuals, 1);
    const int stream = tensors + residuals;
    const PhiloxKey key{call.Word(stream), call.Word(stream + 1), call.Word(stream + 2), 0};
    int64_t size = 0;
    std::vector<PhiloxKey> keys(tensors, key);
    for (int i = 0; i < tensors; ++i) {
      keys[i].variable_draw = static_cast<uint32_t>(variables[i] << 8 | draw);
      size += ByteWords(list.sources()[i].n);
    }
    const Tensor codes = call.Vector(0, TF_INT32, size);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(encode_powers), list.sources().data(), int64_t{tensors},
                      multiplier, keys.data(), codes.data<uint32_t>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, EncodePowers(call.executor(), list.sources(), multiplier, keys,
                                                  codes.data<uint32_t>()));
  }

  int tensors, residuals;
  float multiplier;
  std::vector<int64_t> variables;
  int64_t draw;
};

// The words of all workers, checked against the targets.
Tensor Codes(const ListCall& call, const std::vector<DecodeOutput>& targets) {
  Tensor codes = call.Input(0, 2);
  int64_t size = 0;
  for (const DecodeOutput& target : targets) size += ByteWords(target.n);
  Require(codes.size(1) == size, "The codes do not fit the shapes.");
  Require(codes.size(0) >= 1, "There must be a worker.");
  return codes;
}

struct DecodeTreeListOp {
  explicit DecodeTreeListOp(const ListAttributes& attributes)
      : shapes(attributes.Shapes()),
        factor(attributes.Float("factor")),
        block(ReadBlock(attributes)) {}

  void Compute(const ListCall& call) const {
    const DecodedList list(call, shapes);
    const Tensor codes = Codes(call, list.targets()), scales = call.Input(1, 2);
    int64_t size = 0;
    for (const DecodeOutput& target : list.targets()) size += BlocksOf(target.n, block);
    Require(scales.size(1) == size, "There must be one scale for each block.");
    Require(scales.size(0) == codes.size(0), "Codes and scales are of different workers.");
    const ByteRows rows{codes.data<uint32_t>(), scales.data<float>(), codes.size(0)};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(decode_tree), list.targets().data(),
                      int64_t(list.targets().size()), rows, block, factor,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 DecodeTree(call.executor(), list.targets(), rows, block, factor));
  }

  std::vector<Shape> shapes;
  float factor;
  int64_t block;
};

struct DecodePowersListOp {
  explicit DecodePowersListOp(const ListAttributes& attributes)
      : shapes(attributes.Shapes()), factor(attributes.Float("factor")) {}

  void Compute(const ListCall& call) const {
    const DecodedList list(call, shapes);
    const Tensor codes = Codes(call, list.targets());
    const ByteRows rows{codes.data<uint32_t>(), nullptr, codes.size(0)};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(decode_powers), list.targets().data(),
                      int64_t(list.targets().size()), rows, factor,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, DecodePowers(call.executor(), list.targets(), rows, factor));
  }

  std::vector<Shape> shapes;
  float factor;
};

const bool registered[] = {
    RegisterList<EncodeTreeListOp>(
        "Grace>EncodeTreeList", {"xs: N * float", "residuals: M * float"},
        {"codes: int32", "scales: float", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "block: int"}),
    RegisterList<DecodeTreeListOp>(
        "Grace>DecodeTreeList", {"codes: int32", "scales: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ranks: list(int)", "dims: list(int)", "factor: float", "block: int"}),
    RegisterList<EncodePowersListOp>(
        "Grace>EncodePowersList",
        {"xs: N * float", "residuals: M * float", "seed: int64", "worker: int64", "step: int64"},
        {"codes: int32", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "variables: list(int)", "draw: int"}),
    RegisterList<DecodePowersListOp>(
        "Grace>DecodePowersList", {"codes: int32"}, {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ranks: list(int)", "dims: list(int)", "factor: float"}),
    ListOnGpu<EncodeTreeListOp>("Grace>EncodeTreeList"),
    ListOnGpu<DecodeTreeListOp>("Grace>DecodeTreeList"),
    ListOnGpu<EncodePowersListOp>("Grace>EncodePowersList", {"seed", "worker", "step"}),
    ListOnGpu<DecodePowersListOp>("Grace>DecodePowersList"),
};

}  // namespace
}  // namespace grace
