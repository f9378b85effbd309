#include "kernels/quantize/cast.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

Half HalfOf(const Attributes& attributes) {
  return attributes.Type("dtype") == TF_HALF ? Half::kFloat16 : Half::kBfloat16;
}

struct CastListOp : Encoder {
  explicit CastListOp(const Attributes& attributes)
      : Encoder(attributes), half(HalfOf(attributes)) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 1);
    uint16_t* halves = call.New<uint16_t>(0, {Total(sources, [](int64_t n) { return n; })});
    call.Run(GRACE_CUDA(cast_list), CastList, sources, multiplier, half, halves);
  }

  Half half;
};

struct UncastListOp : Decoder {
  explicit UncastListOp(const Attributes& attributes)
      : Decoder(attributes), half(HalfOf(attributes)) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const auto* halves = call.Given<uint16_t>(0, {Total(targets, [](int64_t n) { return n; })});
    call.Run(GRACE_CUDA(uncast_list), UncastList, targets, half, halves, call.Scalar(1));
  }

  Half half;
};

const bool registered[] = {
    Register<CastListOp>("Grace>CastList", {Encoder::kInputs}, {"halves: dtype", Encoder::kOutputs},
                         {Encoder::kAttributes, "dtype: {half, bfloat16}"}),
    Register<UncastListOp>("Grace>UncastList", {"halves: dtype", "factor: float"},
                           {Decoder::kOutputs},
                           {"N: int >= 1", Decoder::kShapes, "dtype: {half, bfloat16}"}),
};

}  // namespace
}  // namespace grace
