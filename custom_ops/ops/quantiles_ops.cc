#include "kernels/codes/quantiles.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

Quantiles Checked(int64_t buckets, int64_t span) {
  Require(
      buckets <= 256 && span >= 1 && buckets % span == 0 && buckets >= (span == 1 ? 3 : 2 * span),
      "There are 3 to 256 buckets, or two spans of them at least.");
  return {static_cast<int32_t>(buckets), static_cast<int32_t>(span)};
}

struct EncodeQuantilesListOp {
  explicit EncodeQuantilesListOp(const ListAttributes& attributes)
      : tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")),
        quantiles(Checked(attributes.Int("buckets"), attributes.Int("span"))) {}

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, residuals, 2);
    int64_t size = 0;
    for (const EncodeInput& own : list.sources())
      size += PackedWords(own.n, IdBits(quantiles.buckets));
    const Tensor words = call.Vector(0, TF_INT32, size);
    const Tensor means = call.Vector(1, TF_FLOAT, int64_t{tensors} * quantiles.buckets);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(encode_quantiles), list.sources().data(), int64_t{tensors},
                      multiplier, quantiles, words.data<uint32_t>(), means.data<float>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 EncodeQuantiles(call.executor(), list.sources(), multiplier, quantiles,
                                 words.data<uint32_t>(), means.data<float>()));
  }

  int tensors, residuals;
  float multiplier;
  Quantiles quantiles;
};

struct DecodeQuantilesListOp {
  explicit DecodeQuantilesListOp(const ListAttributes& attributes)
      : shapes(attributes.Shapes()),
        buckets(Checked(attributes.Int("buckets"), 1).buckets),
        factor(attributes.Float("factor")) {}

  void Compute(const ListCall& call) const {
    const DecodedList list(call, shapes);
    const Tensor words = call.Input(0, 2), means = call.Input(1, 2);
    int64_t size = 0;
    for (const DecodeOutput& own : list.targets()) size += PackedWords(own.n, IdBits(buckets));
    Require(words.size(0) >= 1 && means.size(0) == words.size(0),
            "Words and means must come from the same workers, at least one.");
    Require(words.size(1) == size &&
                means.size(1) == static_cast<int64_t>(list.targets().size()) * buckets,
            "The words or the means do not fit the shapes.");
    const QuantileRows rows{words.data<uint32_t>(), means.data<float>(), words.size(0)};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(decode_quantiles), list.targets().data(),
                      int64_t(list.targets().size()), &rows, buckets, factor,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 DecodeQuantiles(call.executor(), list.targets(), rows, buckets, factor));
  }

  std::vector<Shape> shapes;
  int32_t buckets;
  float factor;
};

const bool registered[] = {
    RegisterList<EncodeQuantilesListOp>(
        "Grace>EncodeQuantilesList", {"xs: N * float", "residuals: M * float"},
        {"words: int32", "means: float", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "buckets: int", "span: int"}),
    RegisterList<DecodeQuantilesListOp>(
        "Grace>DecodeQuantilesList", {"words: int32", "means: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ranks: list(int)", "dims: list(int)", "factor: float", "buckets: int"}),
    ListOnGpu<EncodeQuantilesListOp>("Grace>EncodeQuantilesList"),
    ListOnGpu<DecodeQuantilesListOp>("Grace>DecodeQuantilesList"),
};

}  // namespace
}  // namespace grace
