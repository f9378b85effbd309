#include "kernels/codes/rotated_codes.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

RotatedCode ReadCode(const Attributes& attributes) {
  const int64_t bits = attributes.Int("bits"), block = attributes.Int("block");
  const int64_t resolution = attributes.Int("resolution");
  const std::vector<float> centroids = attributes.Floats("centroids");
  Require(bits >= 1 && bits <= 8, "There must be 1 to 8 bits.");
  Require(block >= kGroup && block <= kMostRotated && (block & (block - 1)) == 0,
          "A block must be a power of two from 32 to 2048.");
  Require(centroids.size() == size_t{1} << (bits - 1), "There must be 2^(bits - 1) centroids.");
  Require(resolution >= 1 && (resolution & (resolution - 1)) == 0,
          "The resolution must be a power of two.");
  // Up to 5 bits numbers of steps are bytes.
  const int64_t most = bits <= 5 ? 255 : 1 << 20;
  for (size_t i = 0; i < centroids.size(); ++i) {
    const float before = i ? centroids[i - 1] : 0.0f, own = centroids[i];
    Require(own > before && own * static_cast<float>(resolution) <= static_cast<float>(most),
            "Centroids must be positive and in order, and no more than all steps.");
  }
  return {static_cast<int32_t>(bits), static_cast<int32_t>(resolution), block,
          attributes.Bool("least"), centroids};
}

struct EncodeRotatedListOp : Encoder {
  explicit EncodeRotatedListOp(const Attributes& attributes)
      : Encoder(attributes), code(ReadCode(attributes)), streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 2);
    uint32_t* words =
        call.New<uint32_t>(0, {Total(sources, [&](int64_t n) { return code.WordsOf(n); })});
    float* scales =
        call.New<float>(1, {Total(sources, [&](int64_t n) { return code.ScalesOf(n); })});
    call.Run(GRACE_CUDA(encode_rotated), EncodeRotated, sources, multiplier, streams.Keys(call),
             code, words, scales);
  }

  RotatedCode code;
  Streams streams;
};

struct DecodeRotatedListOp : Decoder {
  explicit DecodeRotatedListOp(const Attributes& attributes)
      : Decoder(attributes),
        code(ReadCode(attributes)),
        streams(attributes, static_cast<int64_t>(sizes.size())) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const int64_t workers = call.Workers();
    const int64_t words = Total(targets, [&](int64_t n) { return code.WordsOf(n); });
    const int64_t scales = Total(targets, [&](int64_t n) { return code.ScalesOf(n); });
    const RotatedRows rows{call.Given<uint32_t>(0, {workers, words}),
                           call.Given<float>(1, {workers, scales}), workers};
    call.Run(GRACE_CUDA(decode_rotated), DecodeRotated, targets, rows, streams.Keys(call), code,
             call.Scalar(2));
  }

  RotatedCode code;
  Streams streams;
};

constexpr char kCode[] =
    "bits: int; resolution: int; block: int; least: bool; centroids: list(float)";

const bool registered[] = {
    Register<EncodeRotatedListOp>("Grace>EncodeRotatedList", {Encoder::kInputs, Streams::kInputs},
                                  {"words: int32", "scales: float", Encoder::kOutputs},
                                  {Encoder::kAttributes, Streams::kAttributes, kCode}),
    Register<DecodeRotatedListOp>(
        "Grace>DecodeRotatedList",
        {"words: int32", "scales: float", "factor: float", Streams::kInputs}, {Decoder::kOutputs},
        {"N: int >= 1", Decoder::kShapes, Streams::kAttributes, kCode}),
};

}  // namespace
}  // namespace grace
