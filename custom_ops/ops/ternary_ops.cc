#include "kernels/codes/ternary.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

int32_t ReadBits(const Attributes& attributes) {
  const int64_t bits = attributes.Int("bits");
  Require(bits == kTrits || (bits >= 2 && bits <= 16), "Fields have 2 to 16 bits; 0 means trits.");
  return static_cast<int32_t>(bits);
}

struct TernaryScalesListOp : Encoder {
  explicit TernaryScalesListOp(const Attributes& attributes)
      : Encoder(attributes, nullptr), clip(attributes.Float("clip")) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, kNone, Elements::kAny);
    float* scales = call.New<float>(0, {tensors});
    call.Run(GRACE_CUDA(ternary_scales), TernaryScales, sources, multiplier, clip, scales);
  }

  float clip;
};

struct TernaryEncodeListOp : Encoder {
  explicit TernaryEncodeListOp(const Attributes& attributes)
      : Encoder(attributes, nullptr), bits(ReadBits(attributes)), streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, kNone, Elements::kAny);
    const float* own = call.Given<float>(tensors, {tensors});
    const float* scales = call.Given<float>(tensors + 1, {tensors});
    uint32_t* words =
        call.New<uint32_t>(0, {Total(sources, [&](int64_t n) { return TernaryWords(n, bits); })});
    call.Run(GRACE_CUDA(ternary_encode), TernaryEncode, sources, multiplier, own, scales, bits,
             streams.Keys(call), words);
  }

  int32_t bits;
  Streams streams;
};

struct TernaryDecodeListOp : Decoder {
  explicit TernaryDecodeListOp(const Attributes& attributes)
      : Decoder(attributes), bits(ReadBits(attributes)) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const int64_t workers = call.Workers(), tensors = CountOf(targets);
    const int64_t words = Total(targets, [&](int64_t n) { return TernaryWords(n, bits); });
    const TernaryRows rows{call.Given<uint32_t>(0, {workers, words}),
                           call.Given<float>(1, {workers, tensors}), workers};
    call.Run(GRACE_CUDA(ternary_decode), TernaryDecode, rows, targets, bits, call.Scalar(2));
  }

  int32_t bits;
};

const bool registered[] = {
    Register<TernaryScalesListOp>("Grace>TernaryScalesList", {"xs: N * float"},
                                  {"scales: float", "finite: bool"},
                                  {"N: int >= 1", "multiplier: float", "clip: float"}),
    Register<TernaryEncodeListOp>(
        "Grace>TernaryEncodeList",
        {"xs: N * float", "own: float", "scales: float", Streams::kInputs}, {"words: int32"},
        {"N: int >= 1", "bits: int", Streams::kAttributes, "multiplier: float"}),
    Register<TernaryDecodeListOp>(
        "Grace>TernaryDecodeList", {"words: int32", "scales: float", "factor: float"},
        {Decoder::kOutputs}, {"N: int >= 1", "bits: int", Decoder::kShapes}),
};

}  // namespace
}  // namespace grace
