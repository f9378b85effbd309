#include "kernels/quantize/cast.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

Half HalfOf(TF_DataType type) { return type == kFloat16 ? Half::kFloat16 : Half::kBfloat16; }

struct CastListOp {
  explicit CastListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")), type(attributes.Type("dtype")) {}

  void Compute(const ListCall& call) const {
    const int residuals = call.outputs() - 2;
    const EncodedList list(call, call.inputs() - residuals, residuals, 1);
    const Tensor halves = call.Allocate(0, type, {LoopOver(list.sources()).total()});
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(cast_list), list.sources().data(), int64_t(list.sources().size()),
                      multiplier, HalfOf(type), halves.data<uint16_t>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, CastList(call.executor(), list.sources(), multiplier,
                                              HalfOf(type), halves.data<uint16_t>()));
  }

  float multiplier;
  TF_DataType type;
};

struct UncastListOp {
  explicit UncastListOp(const ListAttributes& attributes)
      : type(attributes.Type("dtype")), shapes(attributes.Shapes()) {}

  void Compute(const ListCall& call) const {
    const Tensor halves = call.Input(0, 1);
    const DecodedList list(call, shapes);
    Require(halves.size() == LoopOver(list.targets()).total(),
            "There must be one half for every element.");
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(uncast_list), list.targets().data(),
                      int64_t(list.targets().size()), HalfOf(type), halves.data<uint16_t>(),
                      call.Scalar(1), call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, UncastList(call.executor(), list.targets(), HalfOf(type),
                                                halves.data<uint16_t>(), call.Scalar(1)));
  }

  TF_DataType type;
  std::vector<Shape> shapes;
};

const bool registered[] = {
    RegisterList<CastListOp>(
        "Grace>CastList", {"xs: N * float", "residuals: M * float"},
        {"halves: dtype", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "dtype: {half, bfloat16}"}),
    RegisterList<UncastListOp>(
        "Grace>UncastList", {"halves: dtype", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ranks: list(int)", "dims: list(int)", "dtype: {half, bfloat16}"}),
    ListOnGpu<CastListOp>("Grace>CastList"),
    ListOnGpu<UncastListOp>("Grace>UncastList", {"factor"}),
};

}  // namespace
}  // namespace grace
