#include "kernels/sparse/index_sets.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

// The attributes `lengths` and `ks`.
IndexLayouts LayoutsOf(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks) {
  Require(ks.size() == lengths.size(), "Every tensor needs its count.");
  for (size_t i = 0; i < ks.size(); ++i) {
    Require(ks[i] >= 1 && ks[i] <= lengths[i] && lengths[i] <= INT32_MAX,
            "The count must be from 1 to the number of elements.");
  }
  return {lengths, ks};
}

std::vector<int64_t> LengthsOf(const std::vector<Shape>& shapes) {
  std::vector<int64_t> lengths;
  for (const Shape& shape : shapes) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    lengths.push_back(n);
  }
  return lengths;
}

struct PackIndexListOp {
  explicit PackIndexListOp(const ListAttributes& attributes)
      : layouts(LayoutsOf(attributes.Lengths("lengths"), attributes.Lengths("ks"))),
        counted(attributes.Bool("counted")) {}

  void Compute(const ListCall& call) const {
    const Tensor indices = call.Input(0, 1), counts = call.Input(1, 1);
    Require(indices.size() == layouts.entries.back(), "The indices must be [sum of ks].");
    Require(!counted || counts.size() == static_cast<int64_t>(layouts.each.size()),
            "There must be one count for each tensor.");
    const Tensor words = call.Allocate(0, TF_INT32, {layouts.words.back()});
    if (call.on_gpu()) {
      // The indices are those that this worker has chosen itself.
      const Tensor fault = call.Workspace(kFaultBytes);
      return call.Run(GRACE_CUDA(pack_index_list), layouts.each.data(),
                      int64_t(layouts.each.size()), indices.data<int32_t>(),
                      counted ? counts.data<int32_t>() : nullptr, words.data<uint32_t>(),
                      fault.data<int32_t>());
    }
    RequireNone(PackIndexList(call.executor(), layouts, indices.data<int32_t>(),
                              counted ? counts.data<int32_t>() : nullptr, words.data<uint32_t>()));
  }

  IndexLayouts layouts;
  bool counted;
};

struct UnpackIndexListOp {
  explicit UnpackIndexListOp(const ListAttributes& attributes)
      : layouts(LayoutsOf(attributes.Lengths("lengths"), attributes.Lengths("ks"))) {}

  void Compute(const ListCall& call) const {
    const Tensor words = call.Input(0, 2);
    Require(words.size(1) == layouts.words.back(), "The words do not fit the sets.");
    const Tensor indices = call.Allocate(0, TF_INT32, {words.size(0), layouts.entries.back()});
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(unpack_index_list), layouts.each.data(),
                      int64_t(layouts.each.size()), words.data<uint32_t>(), words.size(0),
                      indices.data<int32_t>());
    }
    UnpackIndexList(call.executor(), layouts, words.data<uint32_t>(), words.size(0),
                    indices.data<int32_t>());
  }

  IndexLayouts layouts;
};

struct ScatterSetListOp {
  explicit ScatterSetListOp(const ListAttributes& attributes)
      : ks(attributes.Lengths("ks")),
        shapes(attributes.Shapes()),
        layouts(LayoutsOf(LengthsOf(shapes), ks)),
        counted(attributes.Bool("counted")) {}

  void Compute(const ListCall& call) const {
    const Tensor values = call.Input(0, 2), words = call.Input(1, 2), counts = call.Input(2, 2);
    const int64_t workers = values.size(0), tensors = ks.size(), entries = layouts.entries.back();
    const bool fits = values.size(1) == entries && words.size(1) == layouts.words.back();
    Require(fits && words.size(0) == workers, "Values and words do not fit the sets.");
    Require(!counted || (counts.size(0) == workers && counts.size(1) == tensors),
            "There must be one count for each worker and tensor.");
    const DecodedList list(call, shapes);
    const SetEntries sets{values.data<float>(), words.data<uint32_t>(),
                          counted ? counts.data<int32_t>() : nullptr, workers};
    if (call.on_gpu()) {
      // What is wrong with an index is not waited for: the totals then count as not finite.
      const Tensor fault = call.Workspace(kFaultBytes);
      return call.Run(GRACE_CUDA(scatter_set_list), list.targets().data(), layouts.each.data(),
                      tensors, &sets, call.Scalar(3), call.NewBool(call.outputs() - 1),
                      fault.data<int32_t>());
    }
    bool finite = true;
    RequireNone(
        ScatterSetList(call.executor(), list.targets(), layouts, sets, call.Scalar(3), &finite));
    call.SetBool(call.outputs() - 1, finite);
  }

  std::vector<int64_t> ks;
  std::vector<Shape> shapes;
  IndexLayouts layouts;
  bool counted;
};

const bool registered[] = {
    RegisterList<PackIndexListOp>("Grace>PackIndexList", {"indices: int32", "counts: int32"},
                                  {"words: int32"},
                                  {"lengths: list(int)", "ks: list(int)", "counted: bool"}),
    RegisterList<UnpackIndexListOp>("Grace>UnpackIndexList", {"words: int32"}, {"indices: int32"},
                                    {"lengths: list(int)", "ks: list(int)"}),
    RegisterList<ScatterSetListOp>(
        "Grace>ScatterSetList", {"values: float", "words: int32", "counts: int32", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ks: list(int)", "ranks: list(int)", "dims: list(int)", "counted: bool"}),
    ListOnGpu<PackIndexListOp>("Grace>PackIndexList"),
    ListOnGpu<UnpackIndexListOp>("Grace>UnpackIndexList"),
    ListOnGpu<ScatterSetListOp>("Grace>ScatterSetList", {"factor"}),
};

}  // namespace
}  // namespace grace
