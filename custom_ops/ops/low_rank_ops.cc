#include "kernels/low_rank/low_rank.h"
#include "kernels/low_rank/orthonormal.h"
#include "ops/glue/matrices.h"

namespace grace {
namespace {

struct ProjectListOp : Encoder {
  using Encoder::Encoder;

  void Compute(const ListCall& call) const {
    const FloatList xs(call, 0, tensors), left(call, tensors, residuals);
    const int first = tensors + residuals;
    const FloatList factors(call, first, call.inputs() - first);
    std::vector<const float*> qs;
    auto factor = factors.views().begin();
    for (const MatrixSize& size : matrices.sizes()) {
      qs.push_back(nullptr);
      if (!size.rank) continue;
      Require(factor != factors.views().end() && factor->size == size.columns * size.rank,
              "Every matrix needs its q, of its columns and rank.");
      qs.back() = (factor++)->data;
    }
    const Tensor p = call.Vector(0, TF_FLOAT, matrices.p());
    const Tensor dense = call.Vector(1, TF_FLOAT, matrices.dense());
    const std::vector<EncodeInput> sources = matrices.Sources(xs, left);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(project_list), sources.data(), matrices.count(), multiplier,
                      matrices.sizes().data(), qs.data(), p.data<float>(), dense.data<float>(),
                      call.NewBool(2));
    }
    call.SetBool(2, ProjectList(call.executor(), sources, multiplier, matrices.sizes(), qs,
                                p.data<float>(), dense.data<float>()));
  }
};

struct ReprojectListOp : Encoder {
  using Encoder::Encoder;

  void Compute(const ListCall& call) const {
    std::vector<Tensor> residual_out;  // before any other Tensor holds the inputs
    for (int i = 0; i < residuals; ++i) residual_out.push_back(call.Forward(1 + i, i));
    const FloatList xs(call, 0, tensors), left(call, tensors, residuals);
    const Tensor p = call.Input(tensors + residuals, 1);
    Require(p.size() == matrices.p(), "The basis does not fit the matrices.");
    const Tensor q = call.Vector(0, TF_FLOAT, matrices.q());
    std::vector<EncodeInput> sources = matrices.Sources(xs, left);
    for (int i = 0; i < residuals; ++i) sources[i].residual_out = residual_out[i].data<float>();
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(reproject_list), sources.data(), matrices.count(), multiplier,
                      matrices.sizes().data(), p.data<float>(), q.data<float>(), Factors{});
    }
    ReprojectList(call.executor(), sources, multiplier, matrices.sizes(), p.data<float>(),
                  q.data<float>());
  }
};

struct ExpandListOp {
  explicit ExpandListOp(const ListAttributes& attributes)
      : matrices(attributes),
        shapes(attributes.Shapes("shape_ranks", "dims")),
        factor(attributes.Float("factor")) {}

  void Compute(const ListCall& call) const {
    const Tensor p = call.Input(0, 1), q = call.Input(1, 1), dense = call.Input(2, 1);
    Require(p.size() == matrices.p() && q.size() == matrices.q(),
            "The factors do not fit the matrices.");
    Require(dense.size() == matrices.dense(), "The dense values do not fit the tensors.");
    const DecodedList list(call, shapes);
    matrices.RequireShapes(list);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(expand_list), list.targets().data(), matrices.count(),
                      matrices.sizes().data(), p.data<float>(), q.data<float>(),
                      dense.data<float>(), factor, call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 ExpandList(call.executor(), list.targets(), matrices.sizes(), p.data<float>(),
                            q.data<float>(), dense.data<float>(), factor));
  }

  Matrices matrices;
  std::vector<Shape> shapes;
  float factor;
};

struct OrthonormalListOp {
  explicit OrthonormalListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const Tensor p = call.Input(0, 1);
    Require(p.size() == matrices.p(), "P does not fit the matrices.");
    const Tensor basis = call.Vector(0, TF_FLOAT, matrices.p());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(orthonormal_list), matrices.sizes().data(), matrices.count(),
                      p.data<float>(), basis.data<float>());
    }
    OrthonormalList(call.executor(), matrices.sizes(), p.data<float>(), basis.data<float>());
  }

  Matrices matrices;
};

struct UnitColumnsListOp {
  explicit UnitColumnsListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const Tensor q = call.Input(0, 1);
    Require(q.size() == matrices.q(), "Q does not fit the matrices.");
    std::vector<Tensor> outputs;
    std::vector<float*> units;
    for (const MatrixSize& size : matrices.sizes()) {
      units.push_back(nullptr);
      if (!size.rank) continue;
      const int i = static_cast<int>(outputs.size());
      Require(i < call.outputs(), "There must be one output for each matrix.");
      outputs.push_back(call.Shaped(i, TF_FLOAT, {size.columns, size.rank}));
      units.back() = outputs.back().data<float>();
    }
    Require(static_cast<int>(outputs.size()) == call.outputs(),
            "There must be one output for each matrix.");
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(unit_columns_list), matrices.sizes().data(), matrices.count(),
                      q.data<float>(), units.data());
    }
    UnitColumnsList(call.executor(), matrices.sizes(), q.data<float>(), units);
  }

  Matrices matrices;
};

const bool registered[] = {
    RegisterList<ProjectListOp>("Grace>ProjectList",
                                {"xs: N * float", "residuals: M * float", "qs: K * float"},
                                {"p: float", "dense: float", "finite: bool"},
                                {"N: int >= 1", "M: int >= 0", "K: int >= 0", "multiplier: float",
                                 "rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ReprojectListOp>("Grace>ReprojectList",
                                  {"xs: N * float", "residuals: M * float", "basis: float"},
                                  {"q: float", "residuals_out: M * float"},
                                  {"N: int >= 1", "M: int >= 0", "multiplier: float",
                                   "rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ExpandListOp>(
        "Grace>ExpandList", {"basis: float", "q: float", "dense: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "factor: float", "rows: list(int)", "columns: list(int)",
         "ranks: list(int)", "shape_ranks: list(int)", "dims: list(int)"}),
    RegisterList<OrthonormalListOp>("Grace>OrthonormalList", {"p: float"}, {"basis: float"},
                                    {"rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<UnitColumnsListOp>(
        "Grace>UnitColumnsList", {"q: float"}, {"units: K * float"},
        {"K: int >= 0", "rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    ListOnGpu<ProjectListOp>("Grace>ProjectList"),
    ListOnGpu<ReprojectListOp>("Grace>ReprojectList"),
    ListOnGpu<ExpandListOp>("Grace>ExpandList"),
    ListOnGpu<OrthonormalListOp>("Grace>OrthonormalList"),
    ListOnGpu<UnitColumnsListOp>("Grace>UnitColumnsList"),
};

}  // namespace
}  // namespace grace
