#include "kernels/low_rank/alternating.h"
#include "kernels/low_rank/orthonormal.h"
#include "ops/glue/matrices.h"

namespace grace {
namespace {

struct AlternateListOp : Encoder {
  using Encoder::Encoder;

  void Compute(const ListCall& call) const {
    std::vector<Tensor> residual_out;  // before any other Tensor holds the inputs
    for (int i = 0; i < residuals; ++i) residual_out.push_back(call.Forward(3 + i, i));
    const FloatList xs(call, 0, tensors), old(call, tensors, residuals);
    const int first = tensors + residuals;
    const Tensor left = call.Input(first, 1), right = call.Input(first + 1, 1);
    Require(left.size() == matrices.p() && right.size() == matrices.q(),
            "The bases do not fit the matrices.");
    const Tensor p = call.Vector(0, TF_FLOAT, matrices.p());
    const Tensor q = call.Vector(1, TF_FLOAT, matrices.q());
    const Tensor dense = call.Vector(2, TF_FLOAT, matrices.dense());
    std::vector<EncodeInput> sources = matrices.Sources(xs, old);
    for (int i = 0; i < residuals; ++i) sources[i].residual_out = residual_out[i].data<float>();
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(alternate_list), sources.data(), matrices.count(), multiplier,
                      matrices.sizes().data(), left.data<float>(), right.data<float>(),
                      p.data<float>(), q.data<float>(), dense.data<float>(),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(
        call.outputs() - 1,
        AlternateList(call.executor(), sources, multiplier, matrices.sizes(), left.data<float>(),
                      right.data<float>(), p.data<float>(), q.data<float>(), dense.data<float>()));
  }
};

struct BasesListOp {
  explicit BasesListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const FloatList given(call, 0, call.inputs());
    std::vector<const float*> factors;
    auto factor = given.views().begin();
    for (const MatrixSize& size : matrices.sizes()) {
      factors.push_back(nullptr);
      if (!size.rank) continue;
      Require(
          factor != given.views().end() && factor->size == (size.rows + size.columns) * size.rank,
          "Every matrix needs its factors.");
      factors.back() = (factor++)->data;
    }
    const Tensor left = call.Vector(0, TF_FLOAT, matrices.p());
    const Tensor right = call.Vector(1, TF_FLOAT, matrices.q());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(bases_list), matrices.sizes().data(), matrices.count(),
                      factors.data(), left.data<float>(), right.data<float>());
    }
    BasesList(call.executor(), matrices.sizes(), factors, left.data<float>(), right.data<float>());
  }

  Matrices matrices;
};

struct TurnListOp {
  explicit TurnListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const Tensor p = call.Input(0, 1), q = call.Input(1, 1);
    const Tensor left = call.Input(2, 1), right = call.Input(3, 1);
    Require(p.size() == matrices.p() && left.size() == matrices.p() && q.size() == matrices.q() &&
                right.size() == matrices.q(),
            "The factors do not fit the matrices.");
    const bool p_first = call.Word(4) % 2 == 0;
    std::vector<Tensor> outputs;
    std::vector<float*> factors;
    for (const MatrixSize& size : matrices.sizes()) {
      factors.push_back(nullptr);
      if (!size.rank) continue;
      const int i = static_cast<int>(outputs.size());
      Require(i < call.outputs(), "There must be one output for each matrix.");
      outputs.push_back(call.Vector(i, TF_FLOAT, (size.rows + size.columns) * size.rank));
      factors.back() = outputs.back().data<float>();
    }
    Require(static_cast<int>(outputs.size()) == call.outputs(),
            "There must be one output for each matrix.");
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(turn_list), matrices.sizes().data(), matrices.count(),
                      p.data<float>(), q.data<float>(), left.data<float>(), right.data<float>(),
                      p_first, factors.data());
    }
    TurnList(call.executor(), matrices.sizes(), p.data<float>(), q.data<float>(),
             left.data<float>(), right.data<float>(), p_first, factors);
  }

  Matrices matrices;
};

struct RemoveListOp {
  explicit RemoveListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const Tensor w = call.Input(0, 1), basis = call.Input(1, 1);
    Require(w.size() == matrices.p() && basis.size() == matrices.p(),
            "The columns and the basis do not fit the matrices.");
    const Tensor rest = call.Vector(0, TF_FLOAT, matrices.p());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(remove_list), matrices.sizes().data(), matrices.count(),
                      w.data<float>(), basis.data<float>(), rest.data<float>());
    }
    RemoveList(call.executor(), matrices.sizes(), w.data<float>(), basis.data<float>(),
               rest.data<float>());
  }

  Matrices matrices;
};

struct ExpandSidesListOp {
  explicit ExpandSidesListOp(const ListAttributes& attributes)
      : matrices(attributes),
        shapes(attributes.Shapes("shape_ranks", "dims")),
        factor(attributes.Float("factor")) {}

  void Compute(const ListCall& call) const {
    const Tensor left = call.Input(0, 1), right = call.Input(1, 1), rest = call.Input(2, 1);
    const Tensor q = call.Input(3, 1), dense = call.Input(4, 1);
    Require(left.size() == matrices.p() && rest.size() == matrices.p() &&
                right.size() == matrices.q() && q.size() == matrices.q(),
            "The factors do not fit the matrices.");
    Require(dense.size() == matrices.dense(), "The dense values do not fit the tensors.");
    const DecodedList list(call, shapes);
    matrices.RequireShapes(list);
    const Factors bases{left.data<float>(), right.data<float>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(expand_sides_list), list.targets().data(), matrices.count(),
                      matrices.sizes().data(), bases, rest.data<float>(), q.data<float>(),
                      dense.data<float>(), factor, call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 ExpandSidesList(call.executor(), list.targets(), matrices.sizes(), bases,
                                 rest.data<float>(), q.data<float>(), dense.data<float>(), factor));
  }

  Matrices matrices;
  std::vector<Shape> shapes;
  float factor;
};

const bool registered[] = {
    RegisterList<AlternateListOp>(
        "Grace>AlternateList",
        {"xs: N * float", "residuals: M * float", "left: float", "right: float"},
        {"p: float", "q: float", "dense: float", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "rows: list(int)", "columns: list(int)",
         "ranks: list(int)"}),
    RegisterList<BasesListOp>(
        "Grace>BasesList", {"factors: K * float"}, {"left: float", "right: float"},
        {"K: int >= 0", "rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<TurnListOp>(
        "Grace>TurnList", {"p: float", "q: float", "left: float", "right: float", "step: int64"},
        {"factors: K * float"},
        {"K: int >= 0", "rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<RemoveListOp>("Grace>RemoveList", {"w: float", "basis: float"}, {"rest: float"},
                               {"rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ExpandSidesListOp>(
        "Grace>ExpandSidesList",
        {"left: float", "right: float", "rest: float", "q: float", "dense: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "factor: float", "rows: list(int)", "columns: list(int)",
         "ranks: list(int)", "shape_ranks: list(int)", "dims: list(int)"}),
    ListOnGpu<AlternateListOp>("Grace>AlternateList"),
    ListOnGpu<BasesListOp>("Grace>BasesList"),
    ListOnGpu<TurnListOp>("Grace>TurnList", {"step"}),
    ListOnGpu<RemoveListOp>("Grace>RemoveList"),
    ListOnGpu<ExpandSidesListOp>("Grace>ExpandSidesList"),
};

}  // namespace
}  // namespace grace
