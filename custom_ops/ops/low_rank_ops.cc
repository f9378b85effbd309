#include "../kernels/low_rank.h"
#include "../kernels/orthonormal.h"
#include "list_call.h"

namespace grace {
namespace {

// The sizes of all matrices of a list, from the attributes `rows`, `columns` and `ranks`.
class Matrices {
 public:
  explicit Matrices(const ListAttributes& attributes) {
    const std::vector<int64_t> rows = attributes.Lengths("rows");
    const std::vector<int64_t> columns = attributes.Lengths("columns");
    const std::vector<int64_t> ranks = attributes.Lengths("ranks");
    Require(rows.size() == columns.size() && rows.size() == ranks.size(),
            "Every matrix needs its rows, columns and rank.");
    for (size_t i = 0; i < rows.size(); ++i) {
      Require(rows[i] >= 1 && columns[i] >= 1, "A matrix must have elements.");
      Require(ranks[i] || columns[i] == 1, "A tensor without factors has one column.");
      Require(ranks[i] <= rows[i], "A matrix must have as many rows as its factors columns.");
      sizes_.push_back({rows[i], columns[i], ranks[i]});
      p_ += rows[i] * ranks[i];
      q_ += columns[i] * ranks[i];
      if (!ranks[i]) dense_ += rows[i];
    }
  }

  const std::vector<MatrixSize>& sizes() const { return sizes_; }
  int64_t p() const { return p_; }
  int64_t q() const { return q_; }
  int64_t dense() const { return dense_; }

  // The gradients of a call, its first inputs, and their residuals, the next inputs, if any.
  std::vector<Source> Sources(const FloatList& xs, const FloatList& residuals) const {
    Require(xs.views().size() == sizes_.size(), "Every tensor needs its size.");
    std::vector<Source> sources;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const Floats& x = xs.views()[i];
      Require(x.size == sizes_[i].rows * sizes_[i].columns, "A tensor does not fit its size.");
      Source source{x.data, nullptr, nullptr, x.size};
      if (!residuals.views().empty()) {
        Require(residuals.views()[i].size == x.size, "A residual must have its tensor's shape.");
        source.residual = residuals.views()[i].data;
      }
      sources.push_back(source);
    }
    return sources;
  }

 private:
  std::vector<MatrixSize> sizes_;
  int64_t p_ = 0, q_ = 0, dense_ = 0;
};

// What the operations on gradients have alike.
struct Encoder {
  explicit Encoder(const ListAttributes& attributes)
      : matrices(attributes),
        tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")) {
    Require(residuals == 0 || residuals == tensors, "Every tensor needs its residual, or none.");
  }

  Matrices matrices;
  int tensors, residuals;
  float multiplier;
};

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
    call.SetBool(2, ProjectList(call.executor(), matrices.Sources(xs, left), multiplier,
                                matrices.sizes(), qs, p.data<float>(), dense.data<float>()));
  }
};

struct ReprojectListOp : Encoder {
  using Encoder::Encoder;

  void Compute(const ListCall& call) const {
    std::vector<Tensor> kept;  // before any other Tensor holds the inputs
    for (int i = 0; i < residuals; ++i) kept.push_back(call.Forward(1 + i, i));
    const FloatList xs(call, 0, tensors), left(call, tensors, residuals);
    const Tensor p = call.Input(tensors + residuals, 1);
    Require(p.size() == matrices.p(), "The basis does not fit the matrices.");
    const Tensor q = call.Vector(0, TF_FLOAT, matrices.q());
    std::vector<Source> sources = matrices.Sources(xs, left);
    for (int i = 0; i < residuals; ++i) sources[i].kept = kept[i].data<float>();
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
    Require(shapes.size() == matrices.sizes().size(), "Every tensor needs its size.");
    for (size_t i = 0; i < shapes.size(); ++i) {
      const MatrixSize& size = matrices.sizes()[i];
      Require(list.targets()[i].n == size.rows * size.columns, "A shape does not fit its size.");
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
    UnitColumnsList(call.executor(), matrices.sizes(), q.data<float>(), units);
  }

  Matrices matrices;
};

const bool registered[] = {
    RegisterList<ProjectListOp>(
        "Grace>ProjectList", {"xs: N * float", "residuals: M * float", "qs: K * float"},
        {"p: float", "dense: float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "K: int >= 0", "multiplier: float", "rows: list(int)",
         "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ReprojectListOp>(
        "Grace>ReprojectList", {"xs: N * float", "residuals: M * float", "basis: float"},
        {"q: float", "kept: M * float"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "rows: list(int)",
         "columns: list(int)", "ranks: list(int)"}),
    RegisterList<ExpandListOp>(
        "Grace>ExpandList", {"basis: float", "q: float", "dense: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "factor: float", "rows: list(int)", "columns: list(int)",
         "ranks: list(int)", "shape_ranks: list(int)", "dims: list(int)"}),
    RegisterList<OrthonormalListOp>("Grace>OrthonormalList", {"p: float"}, {"basis: float"},
                                    {"rows: list(int)", "columns: list(int)", "ranks: list(int)"}),
    RegisterList<UnitColumnsListOp>("Grace>UnitColumnsList", {"q: float"}, {"units: K * float"},
                                    {"K: int >= 0", "rows: list(int)", "columns: list(int)",
                                     "ranks: list(int)"}),
};

}  // namespace
}  // namespace grace
