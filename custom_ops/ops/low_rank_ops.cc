#include "kernels/low_rank/low_rank.h"
#include "kernels/low_rank/orthonormal.h"
#include "ops/glue/matrices.h"

namespace grace {
namespace {

struct ProjectListOp : MatrixEncoder {
  explicit ProjectListOp(const Attributes& attributes)
      : MatrixEncoder(attributes), keeps(attributes.Int("L") > 0) {
    Require(!keeps || attributes.Int("L") == residuals,
            "Accs are kept only where every tensor has a residual.");
  }

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, keeps ? 2 : kNone);
    const auto qs =
        matrices.Factors<const float>(call.inputs() - after(), [&](int i, const MatrixSize& size) {
          return call.Floats(after() + i, size.columns * size.rank);
        });
    float* p = call.New<float>(0, {matrices.p()});
    float* dense = call.New<float>(1, {matrices.dense()});
    call.Run(GRACE_CUDA(project_list), ProjectList, sources, multiplier, matrices.sizes(), qs, p,
             dense);
  }

  bool keeps;
};

struct ReprojectListOp : MatrixEncoder {
  explicit ReprojectListOp(const Attributes& attributes)
      : MatrixEncoder(attributes, nullptr), keeps(attributes.Int("M") > 0) {
    Require(!keeps || attributes.Int("M") == tensors,
            "Either every tensor or none has a residuals_out.");
  }

  void Compute(const Call& call) const {
    std::vector<float*> residuals_out;
    for (int i = 0; keeps && i < tensors; ++i) residuals_out.push_back(call.Forward(1 + i, i));
    std::vector<EncodeInput> sources = Sources(call, kNone);
    for (int i = 0; keeps && i < tensors; ++i) sources[i].residual_out = residuals_out[i];
    const float* p = call.Given<float>(after(), {matrices.p()});
    float* q = call.New<float>(0, {matrices.q()});
    call.Run(GRACE_CUDA(reproject_list), ReprojectList, sources, multiplier, matrices.sizes(), p, q,
             Factors{});
  }

  bool keeps;
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
        {"p: float", "dense: float", "accs: L * float", "finite: bool"},
        {Encoder::kAttributes, "K: int >= 0", "L: int >= 0", Matrices::kAttributes}),
    Register<ReprojectListOp>("Grace>ReprojectList", {"xs: N * float", "basis: float"},
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
