#include "kernels/codes/byte_codes.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// How many elements share a scale; 0: a tensor has one scale.
struct Block {
  explicit Block(const Attributes& attributes) : size(attributes.Int("block")) {
    Require(size >= 0 && size % kGroup == 0,
            "A block must be a multiple of 32 elements, or 0 for whole tensors.");
  }
  // The number of scales of n elements.
  int64_t operator()(int64_t n) const { return size ? CeilDiv(n, size) : 1; }

  int64_t size;
};

struct EncodeTreeListOp : Encoder {
  explicit EncodeTreeListOp(const Attributes& attributes)
      : Encoder(attributes), block(attributes) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 2);
    uint32_t* codes = call.New<uint32_t>(0, {Total(sources, ByteWords)});
    float* scales = call.New<float>(1, {Total(sources, block)});
    call.Run(GRACE_CUDA(encode_tree), EncodeTree, sources, multiplier, block.size, codes, scales);
  }

  Block block;
};

struct DecodeTreeListOp : Decoder {
  explicit DecodeTreeListOp(const Attributes& attributes)
      : Decoder(attributes), factor(attributes.Float("factor")), block(attributes) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const int64_t workers = call.Workers();
    const ByteRows rows{call.Given<uint32_t>(0, {workers, Total(targets, ByteWords)}),
                        call.Given<float>(1, {workers, Total(targets, block)}), workers};
    call.Run(GRACE_CUDA(decode_tree), DecodeTree, targets, rows, block.size, factor);
  }

  float factor;
  Block block;
};

struct EncodePowersListOp : Encoder {
  explicit EncodePowersListOp(const Attributes& attributes)
      : Encoder(attributes), streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 1);
    uint32_t* codes = call.New<uint32_t>(0, {Total(sources, ByteWords)});
    call.Run(GRACE_CUDA(encode_powers), EncodePowers, sources, multiplier, streams.Keys(call),
             codes);
  }

  Streams streams;
};

struct DecodePowersListOp : Decoder {
  explicit DecodePowersListOp(const Attributes& attributes)
      : Decoder(attributes), factor(attributes.Float("factor")) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const int64_t workers = call.Workers();
    const ByteRows rows{call.Given<uint32_t>(0, {workers, Total(targets, ByteWords)}), nullptr,
                        workers};
    call.Run(GRACE_CUDA(decode_powers), DecodePowers, targets, rows, factor);
  }

  float factor;
};

const bool registered[] = {
    Register<EncodeTreeListOp>("Grace>EncodeTreeList", {Encoder::kInputs},
                               {"codes: int32", "scales: float", Encoder::kOutputs},
                               {Encoder::kAttributes, "block: int"}),
    Register<DecodeTreeListOp>("Grace>DecodeTreeList", {"codes: int32", "scales: float"},
                               {Decoder::kOutputs},
                               {"N: int >= 1", Decoder::kShapes, "factor: float", "block: int"}),
    Register<EncodePowersListOp>("Grace>EncodePowersList", {Encoder::kInputs, Streams::kInputs},
                                 {"codes: int32", Encoder::kOutputs},
                                 {Encoder::kAttributes, Streams::kAttributes}),
    Register<DecodePowersListOp>("Grace>DecodePowersList", {"codes: int32"}, {Decoder::kOutputs},
                                 {"N: int >= 1", Decoder::kShapes, "factor: float"}),
};

}  // namespace
}  // namespace grace
