#include "kernels/select/top_k.h"
#include "kernels/sparse/sparse.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct TopKOp {
  explicit TopKOp(const Attributes& attributes) : counts(attributes.Ints("counts")) {}

  void Compute(const Call& call) const {
    const int count = call.inputs();
    Require(count == static_cast<int>(counts.size()), "Every input needs its count.");
    for (int i = 0; i < count; ++i) {
      const Tensor x = call.Input(i, 1);
      const int64_t k = counts[i];
      Require(k >= 1 && k <= x.size(), "The count must be from 1 to the number of elements.");
      Require(x.size() <= INT32_MAX, "There are more elements than 32-bit indices reach.");
      const Tensor values = call.Vector(i, TF_FLOAT, k);
      const Tensor indices = call.Vector(count + i, TF_INT32, k);
      TopK(call.executor(), x.data<float>(), x.size(), k, values.data<float>(),
           indices.data<int32_t>());
    }
  }

  std::vector<int64_t> counts;
};

struct GatherOp {
  explicit GatherOp(const Attributes&) {}

  void Compute(const Call& call) const {
    const int count = call.outputs();
    for (int i = 0; i < count; ++i) {
      const Tensor x = call.Input(i, 1), indices = call.Input(count + i, 1);
      const Tensor values = call.Vector(i, TF_FLOAT, indices.size());
      Require(Gather(call.executor(), x.data<float>(), x.size(), indices.data<int32_t>(),
                     indices.size(), values.data<float>()),
              "An index is outside the tensor.");
    }
  }
};

struct ScatterSumOp {
  explicit ScatterSumOp(const Attributes& attributes)
      : lengths(attributes.Lengths("lengths")), counted(attributes.Bool("counted")) {}

  void Compute(const Call& call) const {
    const int count = call.outputs();
    Require(count == static_cast<int>(lengths.size()), "Every output needs its length.");
    for (int i = 0; i < count; ++i) {
      const Tensor values = call.Input(i, 2), indices = call.Input(count + i, 2);
      const Tensor counts = call.Input(2 * count + i, 1);
      const int64_t workers = values.size(0), k = values.size(1);
      Require(indices.size(0) == workers && indices.size(1) == k,
              "Values and indices differ in shape.");
      Require(!counted || counts.size() == workers, "There must be one count for each worker.");
      const Tensor out = call.Vector(i, TF_FLOAT, lengths[i]);
      const Scatter result = ScatterSum(
          call.executor(), values.data<float>(), indices.data<int32_t>(),
          counted ? counts.data<int32_t>() : nullptr, workers, k, lengths[i], out.data<float>());
      Require(result != Scatter::kOutside, "An index is outside the result.");
      Require(result != Scatter::kUnordered, "A worker's indices do not ascend strictly.");
    }
  }

  std::vector<int64_t> lengths;
  bool counted;
};

const bool registered[] = {
    Register<TopKOp>({"Grace>TopK",
                      {"xs: N * float"},
                      {"values: N * float", "indices: N * int32"},
                      {"N: int >= 1", "counts: list(int)"},
                      Vectors<1, 2>}),
    Register<GatherOp>({"Grace>Gather",
                        {"xs: N * float", "indices: N * int32"},
                        {"values: N * float"},
                        {"N: int >= 1"},
                        Vectors<2, 1>}),
    Register<ScatterSumOp>({"Grace>ScatterSum",
                            {"values: N * float", "indices: N * int32", "counts: N * int32"},
                            {"totals: N * float"},
                            {"N: int >= 1", "lengths: list(int)", "counted: bool"},
                            Vectors<3, 1>}),
};

}  // namespace
}  // namespace grace
