#include "kernels/select/random_k.h"
#include "kernels/select/top_k.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

void RequireCounts(const std::vector<int64_t>& ks, const std::vector<EncodeInput>& sources) {
  Require(ks.size() == sources.size(), "Every tensor needs its count.");
  for (size_t i = 0; i < ks.size(); ++i) {
    Require(ks[i] >= 1 && ks[i] <= sources[i].n,
            "The count must be from 1 to the number of elements.");
  }
}

void RequireCounts(const std::vector<int64_t>& ks, const std::vector<DecodeOutput>& targets) {
  Require(ks.size() == targets.size(), "Every tensor needs its count.");
  for (size_t i = 0; i < ks.size(); ++i) {
    Require(ks[i] >= 0 && ks[i] <= targets[i].n,
            "The count must be from 0 to the number of elements.");
  }
}

int64_t Count(const std::vector<int64_t>& ks) { return static_cast<int64_t>(ks.size()); }

struct TopKListOp {
  explicit TopKListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")), ks(attributes.Lengths("ks")) {}

  void Compute(const ListCall& call) const {
    const int residuals = call.outputs() - 3;
    const EncodedList list(call, call.inputs() - residuals, residuals, 2);
    RequireCounts(ks, list.sources());
    const Tensor values = call.Allocate(0, TF_FLOAT, {Sum(ks)});
    const Tensor indices = call.Allocate(1, TF_INT32, {Sum(ks)});
    const Selection selection{ks, values.data<float>(), indices.data<int32_t>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(top_k_list), list.sources().data(), Count(ks), multiplier,
                      ks.data(), selection.values, selection.indices,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 TopKList(call.executor(), list.sources(), multiplier, selection));
  }

  float multiplier;
  std::vector<int64_t> ks;
};

struct ThresholdListOp {
  explicit ThresholdListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")),
        threshold(attributes.Float("threshold")),
        ks(attributes.Lengths("capacities")) {
    Require(threshold >= 0, "The threshold must be at least 0.");
  }

  void Compute(const ListCall& call) const {
    const int residuals = call.outputs() - 4;
    const EncodedList list(call, call.inputs() - residuals, residuals, 3);
    RequireCounts(ks, list.sources());
    const Tensor values = call.Allocate(0, TF_FLOAT, {Sum(ks)});
    const Tensor indices = call.Allocate(1, TF_INT32, {Sum(ks)});
    const Tensor counts = call.Allocate(2, TF_INT32, {static_cast<int64_t>(ks.size())});
    const Selection selection{ks, values.data<float>(), indices.data<int32_t>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(threshold_list), list.sources().data(), Count(ks), multiplier,
                      threshold, ks.data(), selection.values, selection.indices,
                      counts.data<int32_t>(), call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, ThresholdList(call.executor(), list.sources(), multiplier,
                                                   threshold, selection, counts.data<int32_t>()));
  }

  float multiplier, threshold;
  std::vector<int64_t> ks;
};

struct ScatterListOp {
  explicit ScatterListOp(const ListAttributes& attributes)
      : ks(attributes.Lengths("ks")),
        shapes(attributes.Shapes()),
        counted(attributes.Bool("counted")) {}

  void Compute(const ListCall& call) const {
    const Tensor values = call.Input(0, 2), indices = call.Input(1, 2), counts = call.Input(2, 2);
    const int64_t workers = values.size(0), tensors = ks.size();
    const bool fits = values.size(1) == Sum(ks) && indices.size(1) == Sum(ks);
    Require(fits && indices.size(0) == workers, "Values and indices must be [workers, sum of ks].");
    Require(!counted || (counts.size(0) == workers && counts.size(1) == tensors),
            "There must be one count for each worker and tensor.");
    const DecodedList list(call, shapes);
    RequireCounts(ks, list.targets());
    const Entries entries{values.data<float>(), indices.data<int32_t>(),
                          counted ? counts.data<int32_t>() : nullptr, workers, ks};
    if (call.on_gpu()) {
      // What is wrong with an index is not waited for: the totals then count as not finite.
      const Tensor fault = call.Workspace(kFaultBytes);
      return call.Run(GRACE_CUDA(scatter_list), list.targets().data(), Count(ks), entries.values,
                      entries.indices, entries.counts, workers, ks.data(), call.Scalar(3),
                      call.NewBool(call.outputs() - 1), fault.data<int32_t>());
    }
    bool finite = true;
    RequireNone(ScatterList(call.executor(), list.targets(), entries, call.Scalar(3), &finite));
    call.SetBool(call.outputs() - 1, finite);
  }

  std::vector<int64_t> ks;
  std::vector<Shape> shapes;
  bool counted;
};

struct RefineListOp {
  explicit RefineListOp(const ListAttributes& attributes) : ks(attributes.Lengths("ks")) {}

  void Compute(const ListCall& call) const {
    const int tensors = call.outputs();
    const Tensor indices = call.Input(tensors, 1), values = call.Input(tensors + 1, 1);
    const Tensor decoded = call.Input(tensors + 2, 1);
    const int64_t size = Sum(ks);
    Require(indices.size() == size && values.size() == size && decoded.size() == size,
            "Indices, values and decoded values must be [sum of ks].");
    std::vector<Tensor> outputs;
    std::vector<DecodeOutput> residual_out;
    for (int i = 0; i < tensors; ++i) {
      outputs.push_back(call.Updated(i));
      residual_out.push_back({outputs.back().data<float>(), outputs.back().elements()});
    }
    RequireCounts(ks, residual_out);
    if (call.on_gpu()) {
      // The indices are those that this worker has chosen itself.
      const Tensor fault = call.Workspace(kFaultBytes);
      return call.Run(GRACE_CUDA(refine_list), residual_out.data(), Count(ks),
                      indices.data<int32_t>(), values.data<float>(), decoded.data<float>(),
                      ks.data(), fault.data<int32_t>());
    }
    RequireNone(RefineList(call.executor(), residual_out, indices.data<int32_t>(),
                           values.data<float>(), decoded.data<float>(), ks));
  }

  std::vector<int64_t> ks;
};

// What names the random streams of a list: three inputs, and attributes.
struct Streams {
  explicit Streams(const ListAttributes& attributes)
      : variables(attributes.Lengths("variables")), draw(attributes.Int("draw")) {}

  // `first` is the first of the inputs: seed, worker, step.
  std::vector<PhiloxKey> Keys(const ListCall& call, int first, size_t tensors) const {
    Require(variables.size() == tensors, "Every tensor needs its variable.");
    std::vector<PhiloxKey> keys;
    for (const int64_t variable : variables) {
      keys.push_back({call.Word(first), call.Word(first + 1), call.Word(first + 2),
                      static_cast<uint32_t>(variable << 8 | draw)});
    }
    return keys;
  }

  std::vector<int64_t> variables;
  int64_t draw;
};

struct RandomIndicesOp {
  explicit RandomIndicesOp(const ListAttributes& attributes)
      : n(attributes.Int("n")), k(attributes.Int("k")), streams(attributes) {
    Require(n >= 1 && n <= INT32_MAX && k >= 1 && k <= n,
            "n must be from 1 to 2^31 - 1, and k from 1 to n.");
  }

  void Compute(const ListCall& call) const {
    const PhiloxKey key = streams.Keys(call, 0, 1)[0];
    const Tensor indices = call.Allocate(0, TF_INT32, {k});
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(random_indices), &key, n, k, indices.data<int32_t>());
    }
    RandomIndices(call.executor(), key, n, k, indices.data<int32_t>());
  }

  int64_t n, k;
  Streams streams;
};

struct RandomKListOp {
  explicit RandomKListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")),
        ks(attributes.Lengths("ks")),
        streams(attributes) {}

  void Compute(const ListCall& call) const {
    const int residuals = call.outputs() - 2, inputs = call.inputs() - 3;
    const EncodedList list(call, inputs - residuals, residuals, 1);
    RequireCounts(ks, list.sources());
    const std::vector<PhiloxKey> keys = streams.Keys(call, inputs, ks.size());
    const Tensor values = call.Allocate(0, TF_FLOAT, {Sum(ks)});
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(random_k_list), list.sources().data(), Count(ks), multiplier,
                      keys.data(), ks.data(), values.data<float>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, RandomKList(call.executor(), list.sources(), multiplier, keys,
                                                 ks, values.data<float>()));
  }

  float multiplier;
  std::vector<int64_t> ks;
  Streams streams;
};

struct ScatterRandomListOp {
  explicit ScatterRandomListOp(const ListAttributes& attributes)
      : ks(attributes.Lengths("ks")),
        scales(attributes.Floats("scales")),
        shapes(attributes.Shapes()),
        streams(attributes) {}

  void Compute(const ListCall& call) const {
    Require(scales.empty() || scales.size() == ks.size(), "Every tensor needs its scale, or none.");
    const Tensor values = call.Input(0, 1);
    Require(values.size() == Sum(ks), "The values must be [sum of ks].");
    const DecodedList list(call, shapes);
    RequireCounts(ks, list.targets());
    for (const int64_t k : ks) Require(k >= 1, "A count must be at least 1.");
    const std::vector<PhiloxKey> keys = streams.Keys(call, 2, ks.size());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(scatter_random_list), list.targets().data(), Count(ks),
                      keys.data(), ks.data(), scales.empty() ? nullptr : scales.data(),
                      values.data<float>(), call.Scalar(1), call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 ScatterRandomList(call.executor(), list.targets(), keys, ks, scales,
                                   values.data<float>(), call.Scalar(1)));
  }

  std::vector<int64_t> ks;
  std::vector<float> scales;
  std::vector<Shape> shapes;
  Streams streams;
};

const bool registered[] = {
    RegisterList<TopKListOp>(
        "Grace>TopKList", {"xs: N * float", "residuals: M * float"},
        {"values: float", "indices: int32", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "ks: list(int)"}),
    RegisterList<ThresholdListOp>("Grace>ThresholdList", {"xs: N * float", "residuals: M * float"},
                                  {"values: float", "indices: int32", "counts: int32",
                                   "residuals_out: M * float", "finite: bool"},
                                  {"N: int >= 1", "M: int >= 0", "multiplier: float",
                                   "threshold: float", "capacities: list(int)"}),
    RegisterList<ScatterListOp>(
        "Grace>ScatterList", {"values: float", "indices: int32", "counts: int32", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ks: list(int)", "ranks: list(int)", "dims: list(int)", "counted: bool"}),
    RegisterList<RefineListOp>(
        "Grace>RefineList",
        {"residuals_out: N * float", "indices: int32", "values: float", "decoded: float"},
        {"refined: N * float"}, {"N: int >= 1", "ks: list(int)"}),
    RegisterList<RandomIndicesOp>(
        "Grace>RandomIndices", {"seed: int64", "worker: int64", "step: int64"}, {"indices: int32"},
        {"n: int", "k: int", "variables: list(int)", "draw: int"}),
    RegisterList<RandomKListOp>(
        "Grace>RandomKList",
        {"xs: N * float", "residuals: M * float", "seed: int64", "worker: int64", "step: int64"},
        {"values: float", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "ks: list(int)", "variables: list(int)",
         "draw: int"}),
    RegisterList<ScatterRandomListOp>(
        "Grace>ScatterRandomList",
        {"values: float", "factor: float", "seed: int64", "worker: int64", "step: int64"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ks: list(int)", "scales: list(float)", "ranks: list(int)",
         "dims: list(int)", "variables: list(int)", "draw: int"}),
    ListOnGpu<TopKListOp>("Grace>TopKList"),
    ListOnGpu<ThresholdListOp>("Grace>ThresholdList"),
    ListOnGpu<ScatterListOp>("Grace>ScatterList", {"factor"}),
    ListOnGpu<RefineListOp>("Grace>RefineList"),
    ListOnGpu<RandomIndicesOp>("Grace>RandomIndices", {"seed", "worker", "step"}),
    ListOnGpu<RandomKListOp>("Grace>RandomKList", {"seed", "worker", "step"}),
    ListOnGpu<ScatterRandomListOp>("Grace>ScatterRandomList", {"factor", "seed", "worker", "step"}),
};

}  // namespace
}  // namespace grace
