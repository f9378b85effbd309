#include "kernels/codes/quantiles.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

Quantiles Checked(int64_t buckets, int64_t span) {
  Require(
      buckets <= 256 && span >= 1 && buckets % span == 0 && buckets >= (span == 1 ? 3 : 2 * span),
      "There are 3 to 256 buckets, or two spans of them at least.");
  return {static_cast<int32_t>(buckets), static_cast<int32_t>(span)};
}

// The words of all identifiers of a list.
template <class List>
int64_t WordsOf(const List& list, int32_t buckets) {
  return Total(list, [=](int64_t n) { return PackedWords(n, IdBits(buckets)); });
}

struct EncodeQuantilesListOp : Encoder {
  explicit EncodeQuantilesListOp(const Attributes& attributes)
      : Encoder(attributes),
        quantiles(Checked(attributes.Int("buckets"), attributes.Int("span"))) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 2);
    uint32_t* words = call.New<uint32_t>(0, {WordsOf(sources, quantiles.buckets)});
    float* means = call.New<float>(1, {int64_t{tensors} * quantiles.buckets});
    call.Run(GRACE_CUDA(encode_quantiles), EncodeQuantiles, sources, multiplier, quantiles, words,
             means);
  }

  Quantiles quantiles;
};

struct DecodeQuantilesListOp : Decoder {
  explicit DecodeQuantilesListOp(const Attributes& attributes)
      : Decoder(attributes),
        factor(attributes.Float("factor")),
        buckets(Checked(attributes.Int("buckets"), 1).buckets) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const int64_t workers = call.Workers();
    const QuantileRows rows{call.Given<uint32_t>(0, {workers, WordsOf(targets, buckets)}),
                            call.Given<float>(1, {workers, CountOf(targets) * buckets}), workers};
    call.Run(GRACE_CUDA(decode_quantiles), DecodeQuantiles, targets, rows, buckets, factor);
  }

  float factor;
  int32_t buckets;
};

const bool registered[] = {
    Register<EncodeQuantilesListOp>("Grace>EncodeQuantilesList", {Encoder::kInputs},
                                    {"words: int32", "means: float", Encoder::kOutputs},
                                    {Encoder::kAttributes, "buckets: int", "span: int"}),
    Register<DecodeQuantilesListOp>(
        "Grace>DecodeQuantilesList", {"words: int32", "means: float"}, {Decoder::kOutputs},
        {"N: int >= 1", Decoder::kShapes, "factor: float", "buckets: int"}),
};

}  // namespace
}  // namespace grace
