#include "kernels/codes/trits.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

int32_t ReadBits(const Attributes& attributes) {
  const int64_t bits = attributes.Int("bits");
  Require(bits == kTrits || (bits >= 2 && bits <= 16), "Fields have 2 to 16 bits; 0 means trits.");
  return static_cast<int32_t>(bits);
}

// Encodes gradients without residuals.
struct TernaryEncoder : Encoder {
  explicit TernaryEncoder(const Attributes& attributes) : Encoder(attributes, nullptr) {}

  // The tensors of a list, with what they are multiplied by.
  std::vector<Ternary> List(const Call& call) const {
    std::vector<Ternary> list;
    for (const EncodeInput& own : Sources(call, kNone, Elements::kAny)) {
      list.push_back({{own.x, nullptr, multiplier}, own.n, 0.0f, 0.0f, nullptr, 0});
    }
    return list;
  }
};

struct TernaryScalesListOp : TernaryEncoder {
  explicit TernaryScalesListOp(const Attributes& attributes)
      : TernaryEncoder(attributes), clip(attributes.Float("clip")) {}

  void Compute(const Call& call) const {
    float* scales = call.New<float>(0, {tensors});
    call.Run(GRACE_CUDA(ternary_scales), TernaryScales, List(call), clip, scales);
  }

  float clip;
};

struct TernaryEncodeListOp : TernaryEncoder {
  explicit TernaryEncodeListOp(const Attributes& attributes)
      : TernaryEncoder(attributes), bits(ReadBits(attributes)), streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    std::vector<Ternary> list = List(call);
    const float* own = call.Given<float>(tensors, {tensors});
    const float* scales = call.Given<float>(tensors + 1, {tensors});
    uint32_t* words =
        call.New<uint32_t>(0, {Total(list, [&](int64_t n) { return TernaryWords(n, bits); })});
    for (int i = 0; i < tensors; ++i) {
      list[i].words = words;
      list[i].variable_draw = streams.Of(i);
      words += TernaryWords(list[i].n, bits);
    }
    const PhiloxKey key = Streams::KeyOf(call);
    if (call.on_gpu()) {
      // Scales are in the GPU's memory; the launcher puts them into the list.
      return call.Launch(GRACE_CUDA(ternary_encode), list.data(), CountOf(list), own, scales, bits,
                         &key);
    }
    for (int i = 0; i < tensors; ++i) {
      list[i].own = own[i];
      list[i].scale = scales[i];
    }
    TernaryEncode(call.executor(), list, bits, key);
  }

  int32_t bits;
  Streams streams;
};

struct TernaryDecodeListOp : Decoder {
  explicit TernaryDecodeListOp(const Attributes& attributes)
      : Decoder(attributes), bits(ReadBits(attributes)) {}

  void Compute(const Call& call) const {
    std::vector<TernaryDecoded> list;
    int64_t words_at = 0;
    for (const DecodeOutput& target : Targets(call)) {
      list.push_back({target.n, words_at, CountOf(list), target.total});
      words_at += TernaryWords(target.n, bits);
    }
    const int64_t workers = call.Workers(), tensors = CountOf(list);
    const TernaryRows rows{call.Given<uint32_t>(0, {workers, words_at}),
                           call.Given<float>(1, {workers, tensors}), workers, words_at, tensors};
    call.Run(GRACE_CUDA(ternary_decode), TernaryDecode, rows, list, bits, call.Scalar(2));
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
