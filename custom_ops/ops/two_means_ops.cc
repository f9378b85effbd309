#include <memory>

#include "kernels/select/two_means.h"
#include "kernels/sparse/index_sets.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

int64_t SignWords(const std::vector<int64_t>& ks) {
  int64_t words = 0;
  for (const int64_t k : ks) words += PackedWords(k, 1);
  return words;
}

void RequireCounts(const std::vector<int64_t>& ks, const std::vector<int64_t>& lengths) {
  Require(ks.size() == lengths.size(), "Every tensor needs its count.");
  for (size_t i = 0; i < ks.size(); ++i) {
    Require(ks[i] >= 1 && ks[i] <= lengths[i],
            "The count must be from 1 to the number of elements.");
  }
}

struct TwoMeansListOp {
  explicit TwoMeansListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")), ks(attributes.Lengths("ks")) {}

  void Compute(const ListCall& call) const {
    const int residuals = call.outputs() - 5;
    const EncodedList list(call, call.inputs() - residuals, residuals, 4);
    const std::vector<int64_t> lengths = Lengths(list.sources());
    RequireCounts(ks, lengths);
    const int64_t tensors = ks.size();
    const Tensor means = call.Allocate(0, TF_FLOAT, {2 * tensors});
    const Tensor signs = call.Allocate(1, TF_INT32, {SignWords(ks)});
    const Tensor indices = call.Allocate(2, TF_INT32, {Sum(ks)});
    const Tensor counts = call.Allocate(3, TF_INT32, {tensors});
    const TwoMeans sent{ks, means.data<float>(), signs.data<uint32_t>(), indices.data<int32_t>(),
                        counts.data<int32_t>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(two_means_list), list.sources().data(), tensors, multiplier,
                      ks.data(), sent.means, sent.signs, sent.indices, sent.counts,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 TwoMeansList(call.executor(), list.sources(), multiplier, sent));
  }

  float multiplier;
  std::vector<int64_t> ks;
};

struct ScatterMeansListOp {
  explicit ScatterMeansListOp(const ListAttributes& attributes)
      : ks(attributes.Lengths("ks")), shapes(attributes.Shapes()) {}

  void Compute(const ListCall& call) const {
    const Tensor means = call.Input(0, 2), signs = call.Input(1, 2), words = call.Input(2, 2);
    const Tensor counts = call.Input(3, 2);
    const DecodedList list(call, shapes);
    const std::vector<int64_t> lengths = Lengths(list.targets());
    RequireCounts(ks, lengths);
    const IndexLayouts layouts(lengths, ks);
    const int64_t workers = means.size(0), tensors = ks.size(), entries = Sum(ks);
    Require(signs.size(0) == workers && words.size(0) == workers && counts.size(0) == workers,
            "The parts are of different numbers of workers.");
    Require(means.size(1) == 2 * tensors && signs.size(1) == SignWords(ks) &&
                words.size(1) == layouts.words.back() && counts.size(1) == tensors,
            "The parts do not fit the tensors.");
    if (call.on_gpu()) return OnTheDevice(call, list.targets(), layouts);
    const std::unique_ptr<float[]> values(new float[workers * entries]);
    ExpandMeans(call.executor(), means.data<float>(), signs.data<uint32_t>(), workers, ks,
                values.get());
    const SetEntries sets{values.get(), words.data<uint32_t>(), counts.data<int32_t>(), workers};
    bool finite = true;
    RequireNone(
        ScatterSetList(call.executor(), list.targets(), layouts, sets, call.Scalar(4), &finite));
    call.SetBool(call.outputs() - 1, finite);
  }

  std::vector<int64_t> ks;
  std::vector<Shape> shapes;

 private:
  void OnTheDevice(const ListCall& call, const std::vector<DecodeOutput>& targets,
                   const IndexLayouts& layouts) const {
    const Tensor means = call.Input(0), signs = call.Input(1), words = call.Input(2);
    const Tensor counts = call.Input(3);
    const int64_t workers = means.size(0), tensors = ks.size();
    const Tensor values = call.Workspace(sizeof(float) * workers * Sum(ks));
    const Tensor fault = call.Workspace(kFaultBytes);
    call.Run(GRACE_CUDA(expand_means), means.data<float>(), signs.data<uint32_t>(), workers,
             ks.data(), tensors, values.data<float>());
    const SetEntries sets{values.data<float>(), words.data<uint32_t>(), counts.data<int32_t>(),
                          workers};
    // What is wrong with an index is not waited for: the totals then count as not finite.
    call.Run(GRACE_CUDA(scatter_set_list), targets.data(), layouts.each.data(), tensors, &sets,
             call.Scalar(4), call.NewBool(call.outputs() - 1), fault.data<int32_t>());
  }
};

const bool registered[] = {
    RegisterList<TwoMeansListOp>(
        "Grace>TwoMeansList", {"xs: N * float", "residuals: M * float"},
        {"means: float", "signs: int32", "indices: int32", "counts: int32",
         "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "ks: list(int)"}),
    RegisterList<ScatterMeansListOp>(
        "Grace>ScatterMeansList",
        {"means: float", "signs: int32", "words: int32", "counts: int32", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ks: list(int)", "ranks: list(int)", "dims: list(int)"}),
    ListOnGpu<TwoMeansListOp>("Grace>TwoMeansList"),
    ListOnGpu<ScatterMeansListOp>("Grace>ScatterMeansList", {"factor"}),
};

}  // namespace
}  // namespace grace
