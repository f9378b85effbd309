#include "kernels/low_rank/orthonormal.h"
#include "kernels/low_rank/two_sided_low_rank.h"
#include "ops/glue/matrices.h"

namespace grace {
namespace {

struct AlternateListOp : MatrixEncoder {
  using MatrixEncoder::MatrixEncoder;

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 3);
    const float* left = call.Given<float>(after(), {matrices.p()});
    const float* right = call.Given<float>(after() + 1, {matrices.q()});
    float* p = call.New<float>(0, {matrices.p()});
    float* q = call.New<float>(1, {matrices.q()});
    float* dense = call.New<float>(2, {matrices.dense()});
    call.Run(GRACE_CUDA(alternate_list), AlternateList, sources, multiplier, matrices.sizes(), left,
             right, p, q, dense);
  }
};

struct BasesListOp : MatrixOp {
  using MatrixOp::MatrixOp;

  void Compute(const Call& call) const {
    const auto factors =
        matrices.Factors<const float>(call.inputs(), [&](int i, const MatrixSize& size) {
          return call.Floats(i, (size.rows + size.columns) * size.rank);
        });
    float* left = call.New<float>(0, {matrices.p()});
    float* right = call.New<float>(1, {matrices.q()});
    call.Run(GRACE_CUDA(bases_list), BasesList, matrices.sizes(), factors, left, right);
  }
};

struct TurnListOp : MatrixOp {
  using MatrixOp::MatrixOp;

  void Compute(const Call& call) const {
    const float* p = call.Given<float>(0, {matrices.p()});
    const float* q = call.Given<float>(1, {matrices.q()});
    const float* left = call.Given<float>(2, {matrices.p()});
    const float* right = call.Given<float>(3, {matrices.q()});
    const bool p_first = call.Word(4) % 2 == 0;
    const auto factors =
        matrices.Factors<float>(call.outputs(), [&](int i, const MatrixSize& size) {
          return call.New<float>(i, {(size.rows + size.columns) * size.rank});
        });
    call.Run(GRACE_CUDA(turn_list), TurnList, matrices.sizes(), p, q, left, right, p_first,
             factors);
  }
};

struct RemoveListOp : MatrixOp {
  using MatrixOp::MatrixOp;

  void Compute(const Call& call) const {
    const float* w = call.Given<float>(0, {matrices.p()});
    const float* basis = call.Given<float>(1, {matrices.p()});
    float* rest = call.New<float>(0, {matrices.p()});
    call.Run(GRACE_CUDA(remove_list), RemoveList, matrices.sizes(), w, basis, rest);
  }
};

struct ExpandSidesListOp : MatrixDecoder {
  using MatrixDecoder::MatrixDecoder;

  void Compute(const Call& call) const {
    const float* left = call.Given<float>(0, {matrices.p()});
    const float* right = call.Given<float>(1, {matrices.q()});
    const float* rest = call.Given<float>(2, {matrices.p()});
    const float* q = call.Given<float>(3, {matrices.q()});
    const float* dense = call.Given<float>(4, {matrices.dense()});
    call.Run(GRACE_CUDA(expand_sides_list), ExpandSidesList, Targets(call), matrices.sizes(),
             Factors{left, right}, rest, q, dense, factor);
  }
};

const bool registered[] = {
    Register<AlternateListOp>("Grace>AlternateList",
                              {Encoder::kInputs, "left: float", "right: float"},
                              {"p: float", "q: float", "dense: float", Encoder::kOutputs},
                              {Encoder::kAttributes, Matrices::kAttributes}),
    Register<BasesListOp>("Grace>BasesList", {"factors: K * float"},
                          {"left: float", "right: float"}, {"K: int >= 0", Matrices::kAttributes}),
    Register<TurnListOp>("Grace>TurnList",
                         {"p: float", "q: float", "left: float", "right: float", "step: int64"},
                         {"factors: K * float"}, {"K: int >= 0", Matrices::kAttributes}),
    Register<RemoveListOp>("Grace>RemoveList", {"w: float", "basis: float"}, {"rest: float"},
                           {Matrices::kAttributes}),
    Register<ExpandSidesListOp>(
        "Grace>ExpandSidesList",
        {"left: float", "right: float", "rest: float", "q: float", "dense: float"},
        {Decoder::kOutputs}, {MatrixDecoder::kAttributes}),
};

}  // namespace
}  // namespace grace
