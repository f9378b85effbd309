#include "kernels/select/sampled_top_k.h"
#include "ops/glue/op.h"
#include "ops/glue/selections.h"

namespace grace {
namespace {

struct SampledKListOp : SelectionEncoder {
  explicit SampledKListOp(const Attributes& attributes)
      : SelectionEncoder(attributes),
        states(static_cast<int>(attributes.Int("U"))),
        strides(attributes.Lengths("strides")),
        sizes(attributes.Lengths("sizes")),
        ranks(attributes.Lengths("ranks")),
        streams(attributes, tensors),
        correction{{},
                   attributes.Float("momentum"),
                   attributes.Bool("nesterov"),
                   attributes.Bool("masked"),
                   attributes.Float("limit")} {
    Require(states == 0 || states == residuals, "Every momentum needs its residual.");
    Require(residuals > 0 || multiplier == 1.0f, "A multiplier needs residuals.");
    for (const auto* list : {&strides, &sizes, &ranks}) {
      Require(static_cast<int>(list->size()) == tensors, "Every tensor needs its sampling.");
    }
  }

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 3);
    Correction own = correction;
    for (int i = 0; i < states; ++i) {
      float* next = call.Forward(3 + residuals + i, after() + i);
      own.states.push_back({call.Floats(after() + i, sources[i].n), next});
    }
    int32_t* counts = call.New<int32_t>(2, {tensors});
    call.Run(GRACE_CUDA(sampled_k_list), SampledKList, sources, multiplier, own,
             Samplings(sources, Streams::KeyOf(call)), Selected(call), counts);
  }

 private:
  std::vector<Sampling> Samplings(const std::vector<EncodeInput>& sources, PhiloxKey key) const {
    std::vector<Sampling> samplings;
    for (size_t i = 0; i < ks.size(); ++i) {
      Require(strides[i] >= 1 && sizes[i] >= 1 && sizes[i] <= sources[i].n / strides[i] &&
                  ranks[i] >= 1 && ranks[i] <= sizes[i],
              "A sample must lie in its tensor and have its rank.");
      key.variable_draw = streams.Of(i);
      samplings.push_back({strides[i], sizes[i], ranks[i], key});
    }
    return samplings;
  }

  int states;
  std::vector<int64_t> strides, sizes, ranks;
  Streams streams;
  Correction correction;
};

const bool registered = Register<SampledKListOp>(
    "Grace>SampledKList", {Encoder::kInputs, "states: U * float", Streams::kInputs},
    {"values: float", "indices: int32", "counts: int32", "residuals_out: M * float",
     "next_states: U * float", "finite: bool"},
    {"N: int >= 1", "M: int >= 0", "U: int >= 0", "multiplier: float", "ks: list(int)",
     "strides: list(int)", "sizes: list(int)", "ranks: list(int)", "momentum: float",
     "nesterov: bool", "masked: bool", "limit: float", Streams::kAttributes});

}  // namespace
}  // namespace grace
