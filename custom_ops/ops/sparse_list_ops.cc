#include "kernels/select/random_k.h"
#include "kernels/select/top_k.h"
#include "ops/glue/op.h"
#include "ops/glue/selections.h"

namespace grace {
namespace {

struct TopKListOp : SelectionEncoder {
  using SelectionEncoder::SelectionEncoder;

  void Compute(const Call& call) const {
    call.Run(GRACE_CUDA(top_k_list), TopKList, Sources(call, 2), multiplier, Selected(call));
  }
};

struct ThresholdListOp : SelectionEncoder {
  explicit ThresholdListOp(const Attributes& attributes)
      : SelectionEncoder(attributes, "capacities"), threshold(attributes.Float("threshold")) {
    Require(threshold >= 0, "The threshold must be at least 0.");
  }

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 3);
    int32_t* counts = call.New<int32_t>(2, {tensors});
    call.Run(GRACE_CUDA(threshold_list), ThresholdList, sources, multiplier, threshold,
             Selected(call), counts);
  }

  float threshold;
};

struct ScatterListOp : Decoder {
  explicit ScatterListOp(const Attributes& attributes)
      : Decoder(attributes), ks(attributes.Lengths("ks")), counted(attributes.Bool("counted")) {
    RequireCounts(ks, sizes, 0);
  }

  void Compute(const Call& call) const {
    const int64_t workers = call.Workers(0);
    const Entries entries{
        call.Given<float>(0, {workers, Sum(ks)}), call.Given<int32_t>(1, {workers, Sum(ks)}),
        counted ? call.Given<int32_t>(2, {workers, CountOf(ks)}) : nullptr, workers, ks};
    call.Run(GRACE_CUDA(scatter_list), ScatterList, Targets(call), entries, call.Scalar(3));
  }

  std::vector<int64_t> ks;
  bool counted;
};

struct RefineListOp {
  explicit RefineListOp(const Attributes& attributes) : ks(attributes.Lengths("ks")) {}

  void Compute(const Call& call) const {
    const int tensors = call.outputs();
    const int32_t* indices = call.Given<int32_t>(tensors, {Sum(ks)});
    const float* values = call.Given<float>(tensors + 1, {Sum(ks)});
    const float* decoded = call.Given<float>(tensors + 2, {Sum(ks)});
    std::vector<DecodeOutput> refined;
    for (int i = 0; i < tensors; ++i) refined.push_back(call.Updated(i));
    RequireCounts(ks, refined, 0);
    call.Run(GRACE_CUDA(refine_list), RefineList, refined, indices, values, decoded, ks);
  }

  std::vector<int64_t> ks;
};

struct RandomIndicesOp {
  explicit RandomIndicesOp(const Attributes& attributes)
      : n(attributes.Int("n")), k(attributes.Int("k")), streams(attributes, 1) {
    Require(n >= 1 && n <= INT32_MAX && k >= 1 && k <= n,
            "n must be from 1 to 2^31 - 1, and k from 1 to n.");
  }

  void Compute(const Call& call) const {
    PhiloxKey key = Streams::KeyOf(call);
    key.variable_draw = streams.Of(0);
    int32_t* indices = call.New<int32_t>(0, {k});
    call.Run(GRACE_CUDA(random_indices), RandomIndices, key, n, k, indices);
  }

  int64_t n, k;
  Streams streams;
};

struct RandomKListOp : SelectionEncoder {
  explicit RandomKListOp(const Attributes& attributes)
      : SelectionEncoder(attributes), streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    float* values = call.New<float>(0, {Sum(ks)});
    call.Run(GRACE_CUDA(random_k_list), RandomKList, Sources(call, 1), multiplier,
             streams.Keys(call), ks, values);
  }

  Streams streams;
};

struct ScatterRandomListOp : Decoder {
  explicit ScatterRandomListOp(const Attributes& attributes)
      : Decoder(attributes),
        ks(attributes.Lengths("ks")),
        scales(attributes.Floats("scales")),
        streams(attributes, CountOf(ks)) {
    RequireCounts(ks, sizes);
    Require(scales.empty() || scales.size() == ks.size(), "Every tensor needs its scale, or none.");
  }

  void Compute(const Call& call) const {
    const float* values = call.Given<float>(0, {Sum(ks)});
    call.Run(GRACE_CUDA(scatter_random_list), ScatterRandomList, Targets(call), streams.Keys(call),
             ks, scales, values, call.Scalar(1));
  }

  std::vector<int64_t> ks;
  std::vector<float> scales;
  Streams streams;
};

const bool registered[] = {
    Register<TopKListOp>("Grace>TopKList", {Encoder::kInputs},
                         {"values: float", "indices: int32", Encoder::kOutputs},
                         {Encoder::kAttributes, "ks: list(int)"}),
    Register<ThresholdListOp>(
        "Grace>ThresholdList", {Encoder::kInputs},
        {"values: float", "indices: int32", "counts: int32", Encoder::kOutputs},
        {Encoder::kAttributes, "threshold: float", "capacities: list(int)"}),
    Register<ScatterListOp>(
        "Grace>ScatterList", {"values: float", "indices: int32", "counts: int32", "factor: float"},
        {Decoder::kOutputs}, {"N: int >= 1", "ks: list(int)", Decoder::kShapes, "counted: bool"}),
    Register<RefineListOp>(
        "Grace>RefineList",
        {"residuals_out: N * float", "indices: int32", "values: float", "decoded: float"},
        {"refined: N * float"}, {"N: int >= 1", "ks: list(int)"}),
    Register<RandomIndicesOp>("Grace>RandomIndices", {Streams::kInputs}, {"indices: int32"},
                              {"n: int", "k: int", Streams::kAttributes}),
    Register<RandomKListOp>("Grace>RandomKList", {Encoder::kInputs, Streams::kInputs},
                            {"values: float", Encoder::kOutputs},
                            {Encoder::kAttributes, "ks: list(int)", Streams::kAttributes}),
    Register<ScatterRandomListOp>("Grace>ScatterRandomList",
                                  {"values: float", "factor: float", Streams::kInputs},
                                  {Decoder::kOutputs},
                                  {"N: int >= 1", "ks: list(int)", "scales: list(float)",
                                   Decoder::kShapes, Streams::kAttributes}),
};

}  // namespace
}  // namespace grace
