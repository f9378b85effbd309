#include "kernels/select/two_means.h"
#include "ops/glue/op.h"
#include "ops/glue/selections.h"

namespace grace {
namespace {

int64_t SignWords(const std::vector<int64_t>& ks) {
  return Total(ks, [](int64_t k) { return PackedWords(k, 1); });
}

struct TwoMeansListOp : SelectionEncoder {
  using SelectionEncoder::SelectionEncoder;

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 4);
    const TwoMeans sent{ks, call.New<float>(0, {2 * int64_t{tensors}}),
                        call.New<uint32_t>(1, {SignWords(ks)}), call.New<int32_t>(2, {Sum(ks)}),
                        call.New<int32_t>(3, {tensors})};
    call.Run(GRACE_CUDA(two_means_list), TwoMeansList, sources, multiplier, sent);
  }
};

struct ScatterMeansListOp : Decoder {
  explicit ScatterMeansListOp(const Attributes& attributes)
      : Decoder(attributes), ks(attributes.Lengths("ks")), layouts(LayoutsOf(sizes, ks)) {}

  void Compute(const Call& call) const {
    const int64_t workers = call.Workers(0), tensors = CountOf(ks);
    const float* means = call.Given<float>(0, {workers, 2 * tensors});
    const uint32_t* signs = call.Given<uint32_t>(1, {workers, SignWords(ks)});
    const Tensor values = call.Workspace(sizeof(float) * workers * Sum(ks));
    const SetEntries sets{values.data<float>(),
                          call.Given<uint32_t>(2, {workers, layouts.words.back()}),
                          call.Given<int32_t>(3, {workers, tensors}), workers};
    const std::vector<DecodeOutput> targets = Targets(call);
    call.Run(GRACE_CUDA(expand_means), ExpandMeans, means, signs, workers, ks,
             values.data<float>());
    call.Run(GRACE_CUDA(scatter_set_list), ScatterSetList, targets, layouts, sets, call.Scalar(4));
  }

  std::vector<int64_t> ks;
  IndexLayouts layouts;
};

const bool registered[] = {
    Register<TwoMeansListOp>(
        "Grace>TwoMeansList", {Encoder::kInputs},
        {"means: float", "signs: int32", "indices: int32", "counts: int32", Encoder::kOutputs},
        {Encoder::kAttributes, "ks: list(int)"}),
    Register<ScatterMeansListOp>(
        "Grace>ScatterMeansList",
        {"means: float", "signs: int32", "words: int32", "counts: int32", "factor: float"},
        {Decoder::kOutputs}, {"N: int >= 1", "ks: list(int)", Decoder::kShapes}),
};

}  // namespace
}  // namespace grace
