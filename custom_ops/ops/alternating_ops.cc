#include "../kernels/alternating.h"

#include "../kernels/orthonormal.h"
#include "matrices.h"

namespace grace {
namespace {

struct AlternateListOp : Encoder {
  using Encoder::Encoder;

  void Compute(const ListCall& call) const {
    std::vector<Tensor> kept;  // before any other Tensor holds the inputs
    for (int i = 0; i < residuals; ++i) kept.push_back(call.Forward(3 + i, i));
    const FloatList xs(call, 0, tensors), old(call, tensors, residuals);
    const int first = tensors + residuals;
    const Tensor left = call.Input(first, 1), right = call.Input(first + 1, 1);
    Require(left.size() == matrices.p() && right.size() == matrices.q(),
            "The bases do not fit the matrices.");
    const Tensor p = call.Vector(0, TF_FLOAT, matrices.p());
    const Tensor q = call.Vector(1, TF_FLOAT, matrices.q());
    const Tensor dense = call.Vector(2, TF_FLOAT, matrices.dense());
    std::vector<Source> sources = matrices.Sources(xs, old);
    for (int i = 0; i < residuals; ++i) sources[i].kept = kept[i].data<float>();
    call.SetBool(call.outputs() - 1,
                 AlternateList(call.executor(), sources, multiplier, matrices.sizes(),
                               left.data<float>(), right.data<float>(), p.data<float>(),
                               q.data<float>(), dense.data<float>()));
  }
};

struct RemoveListOp {
  explicit RemoveListOp(const ListAttributes& attributes) : matrices(attributes) {}

  void Compute(const ListCall& call) const {
    const Tensor w = call.Input(0, 1), basis = call.Input(1, 1);
    Require(w.size() == matrices.p() && basis.size() == matrices.p(),
            "The columns and the basis do not fit the matrices.");
    const Tensor rest = call.Vector(0, TF_FLOAT, matrices.p());
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
    call.SetBool(call.outputs() - 1,
                 ExpandSidesList(call.executor(), list.targets(), matrices.sizes(),
                                 {left.data<float>(), right.data<float>()}, rest.data<float>(),
                                 q.data<float>(), dense.data<float>(), factor));
  }

  Matrices matrices;
  std::vector<Shape> shapes;
  float factor;
};

const bool registered[] = {
    RegisterList<AlternateListOp>(
        "Grace>AlternateList",
        {"xs: N * float", "residuals: M * float", "left: float", "right: float"},
        {"p: float", "q: float", "dense: float", "kept: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "rows: list(int)",
         "columns: list(int)", "ranks: list(int)"}),
    RegisterList<RemoveListOp>("Grace>RemoveList", {"w: float", "basis: float"}, {"rest: float"},
                               {"rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ExpandSidesListOp>(
        "Grace>ExpandSidesList",
        {"left: float", "right: float", "rest: float", "q: float", "dense: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "factor: float", "rows: list(int)", "columns: list(int)",
         "ranks: list(int)", "shape_ranks: list(int)", "dims: list(int)"}),
};

}  // namespace
}  // namespace grace
