#include "kernels/low_rank/low_rank.h"
#include "kernels/low_rank/orthonormal.h"
#include "ops/glue/matrices.h"

namespace grace {
namespace {

struct ProjectListOp : MatrixEncoder {
  using MatrixEncoder::MatrixEncoder;

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, kNone);
    const auto qs =
        matrices.Factors<const float>(call.inputs() - after(), [&](int i, const MatrixSize& size) {
          return call.Floats(after() + i, size.columns * size.rank);
        });
    float* p = call.New<float>(0, {matrices.p()});
    float* dense = call.New<float>(1, {matrices.dense()});
    call.Run(GRACE_CUDA(project_list), ProjectList, sources, multiplier, matrices.sizes(), qs, p,
             dense);
  }
};

struct ReprojectListOp : MatrixEncoder {
  using MatrixEncoder::MatrixEncoder;

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 1);
    const float* p = call.Given<float>(after(), {matrices.p()});
    float* q = call.New<float>(0, {matrices.q()});
    call.Run(GRACE_CUDA(reproject_list), ReprojectList, sources, multiplier, matrices.sizes(), p, q,
             Factors{});
  }
};

struct ExpandListOp : MatrixDecoder {
  using MatrixDecoder::MatrixDecoder;

  void Compute(const Call& call) const {
    const float* p = call.Given<float>(0, {matrices.p()});
    const float* q = call.Given<float>(1, {matrices.q()});
    const float* dense = call.Given<float>(2, {matrices.dense()});
    call.Run(GRACE_CUDA(expand_list), ExpandList, Targets(call), matrices.sizes(), p, q, dense,
             factor);
  }
};

struct OrthonormalListOp : MatrixOp {
  using MatrixOp::MatrixOp;

  void Compute(const Call& call) const {
    const float* p = call.Given<float>(0, {matrices.p()});
    float* basis = call.New<float>(0, {matrices.p()});
    call.Run(GRACE_CUDA(orthonormal_list), OrthonormalList, matrices.sizes(), p, basis);
  }
};

struct UnitColumnsListOp : MatrixOp {
  using MatrixOp::MatrixOp;

  void Compute(const Call& call) const {
    const float* q = call.Given<float>(0, {matrices.q()});
    const auto units = matrices.Factors<float>(call.outputs(), [&](int i, const MatrixSize& size) {
      return call.New<float>(i, {size.columns, size.rank});
    });
    call.Run(GRACE_CUDA(unit_columns_list), UnitColumnsList, matrices.sizes(), q, units);
  }
};

const bool registered[] = {
    Register<ProjectListOp>(
        "Grace>ProjectList", {Encoder::kInputs, "qs: K * float"},
        {"p: float", "dense: float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "K: int >= 0", "multiplier: float", Matrices::kAttributes}),
    Register<ReprojectListOp>("Grace>ReprojectList", {Encoder::kInputs, "basis: float"},
                              {"q: float", "residuals_out: M * float"},
                              {Encoder::kAttributes, Matrices::kAttributes}),
    Register<ExpandListOp>("Grace>ExpandList", {"basis: float", "q: float", "dense: float"},
                           {Decoder::kOutputs}, {MatrixDecoder::kAttributes}),
    Register<OrthonormalListOp>("Grace>OrthonormalList", {"p: float"}, {"basis: float"},
                                {Matrices::kAttributes}),
    Register<UnitColumnsListOp>("Grace>UnitColumnsList", {"q: float"}, {"units: K * float"},
                                {"K: int >= 0", Matrices::kAttributes}),
};

}  // namespace
}  // namespace grace
