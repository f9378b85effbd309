#include "kernels/select/sampled_k.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

struct SampledKListOp {
  explicit SampledKListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")),
        tensors(attributes.Int("N")),
        residuals(attributes.Int("M")),
        states(attributes.Int("U")),
        ks(attributes.Lengths("ks")),
        strides(attributes.Lengths("strides")),
        sizes(attributes.Lengths("sizes")),
        ranks(attributes.Lengths("ranks")),
        variables(attributes.Lengths("variables")),
        draw(attributes.Int("draw")),
        correction{{},
                   attributes.Float("momentum"),
                   attributes.Bool("nesterov"),
                   attributes.Bool("masked"),
                   attributes.Float("limit")} {
    Require(states == 0 || states == residuals, "Every momentum needs its residual.");
    Require(residuals > 0 || multiplier == 1.0f, "A multiplier needs residuals.");
    for (const auto* list : {&ks, &strides, &sizes, &ranks, &variables}) {
      Require(static_cast<int64_t>(list->size()) == tensors, "Every tensor needs its sampling.");
    }
  }

  void Compute(const ListCall& call) const {
    Correction own = correction;
    std::vector<Tensor> held;
    held.reserve(2 * states);
    for (int i = 0; i < states; ++i) {
      const int input = tensors + residuals + i;
      // Before any other Tensor holds the input.
      held.push_back(call.Forward(3 + residuals + i, input));
      float* next = held.back().data<float>();
      held.push_back(call.Input(input));
      own.states.push_back({held.back().data<float>(), next});
    }
    const EncodedList list(call, tensors, residuals, 3);
    for (int i = 0; i < states; ++i) {
      Require(held[2 * i].elements() == list.sources()[i].n,
              "A momentum must have its tensor's shape.");
    }
    const std::vector<Sampling> samplings = Samplings(call, list.sources());
    const Tensor values = call.Allocate(0, TF_FLOAT, {Sum(ks)});
    const Tensor indices = call.Allocate(1, TF_INT32, {Sum(ks)});
    const Tensor counts = call.Allocate(2, TF_INT32, {tensors});
    const Selection selection{ks, values.data<float>(), indices.data<int32_t>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(sampled_k_list), list.sources().data(), tensors, multiplier,
                      states ? own.states.data() : nullptr, own.momentum, own.nesterov, own.masked,
                      own.limit, samplings.data(), ks.data(), selection.values, selection.indices,
                      counts.data<int32_t>(), call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, SampledKList(call.executor(), list.sources(), multiplier, own,
                                                  samplings, selection, counts.data<int32_t>()));
  }

 private:
  std::vector<Sampling> Samplings(const ListCall& call,
                                  const std::vector<EncodeInput>& sources) const {
    const int first = tensors + residuals + states;
    std::vector<Sampling> samplings;
    for (size_t i = 0; i < ks.size(); ++i) {
      const int64_t n = sources[i].n;
      Require(ks[i] >= 1 && ks[i] <= n, "The count must be from 1 to the number of elements.");
      Require(strides[i] >= 1 && sizes[i] >= 1 && sizes[i] <= n / strides[i] && ranks[i] >= 1 &&
                  ranks[i] <= sizes[i],
              "A sample must lie in its tensor and have its rank.");
      samplings.push_back({strides[i],
                           sizes[i],
                           ranks[i],
                           {call.Word(first), call.Word(first + 1), call.Word(first + 2),
                            static_cast<uint32_t>(variables[i] << 8 | draw)}});
    }
    return samplings;
  }

  const float multiplier;
  const int64_t tensors, residuals, states;
  const std::vector<int64_t> ks, strides, sizes, ranks, variables;
  const int64_t draw;
  const Correction correction;
};

const bool registered[] = {
    RegisterList<SampledKListOp>(
        "Grace>SampledKList",
        {"xs: N * float", "residuals: M * float", "states: U * float", "seed: int64",
         "worker: int64", "step: int64"},
        {"values: float", "indices: int32", "counts: int32", "residuals_out: M * float",
         "next_states: U * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "U: int >= 0", "multiplier: float", "ks: list(int)",
         "strides: list(int)", "sizes: list(int)", "ranks: list(int)", "momentum: float",
         "nesterov: bool", "masked: bool", "limit: float", "variables: list(int)", "draw: int"}),
    ListOnGpu<SampledKListOp>("Grace>SampledKList", {"seed", "worker", "step"}),
};

}  // namespace
}  // namespace grace
