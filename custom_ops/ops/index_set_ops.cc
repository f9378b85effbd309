#include "kernels/sparse/index_sets.h"
#include "ops/glue/op.h"
#include "ops/glue/selections.h"

namespace grace {
namespace {

struct PackIndexListOp {
  explicit PackIndexListOp(const Attributes& attributes)
      : layouts(LayoutsOf(attributes.Lengths("lengths"), attributes.Lengths("ks"))),
        counted(attributes.Bool("counted")) {}

  void Compute(const Call& call) const {
    const int32_t* indices = call.Given<int32_t>(0, {layouts.entries.back()});
    const int32_t* counts = counted ? call.Given<int32_t>(1, {CountOf(layouts)}) : nullptr;
    uint32_t* words = call.New<uint32_t>(0, {layouts.words.back()});
    call.Run(GRACE_CUDA(pack_index_list), PackIndexList, layouts, indices, counts, words);
  }

  IndexLayouts layouts;
  bool counted;
};

struct UnpackIndexListOp {
  explicit UnpackIndexListOp(const Attributes& attributes)
      : layouts(LayoutsOf(attributes.Lengths("lengths"), attributes.Lengths("ks"))) {}

  void Compute(const Call& call) const {
    const int64_t workers = call.Workers(0);
    const uint32_t* words = call.Given<uint32_t>(0, {workers, layouts.words.back()});
    int32_t* indices = call.New<int32_t>(0, {workers, layouts.entries.back()});
    call.Run(GRACE_CUDA(unpack_index_list), UnpackIndexList, layouts, words, workers, indices);
  }

  IndexLayouts layouts;
};

struct ScatterSetListOp : Decoder {
  explicit ScatterSetListOp(const Attributes& attributes)
      : Decoder(attributes),
        layouts(LayoutsOf(sizes, attributes.Lengths("ks"))),
        counted(attributes.Bool("counted")) {}

  void Compute(const Call& call) const {
    const int64_t workers = call.Workers(0);
    const SetEntries sets{call.Given<float>(0, {workers, layouts.entries.back()}),
                          call.Given<uint32_t>(1, {workers, layouts.words.back()}),
                          counted ? call.Given<int32_t>(2, {workers, CountOf(layouts)}) : nullptr,
                          workers};
    call.Run(GRACE_CUDA(scatter_set_list), ScatterSetList, Targets(call), layouts, sets,
             call.Scalar(3));
  }

  IndexLayouts layouts;
  bool counted;
};

const bool registered[] = {
    Register<PackIndexListOp>("Grace>PackIndexList", {"indices: int32", "counts: int32"},
                              {"words: int32"},
                              {"lengths: list(int)", "ks: list(int)", "counted: bool"}),
    Register<UnpackIndexListOp>("Grace>UnpackIndexList", {"words: int32"}, {"indices: int32"},
                                {"lengths: list(int)", "ks: list(int)"}),
    Register<ScatterSetListOp>(
        "Grace>ScatterSetList", {"values: float", "words: int32", "counts: int32", "factor: float"},
        {Decoder::kOutputs}, {"N: int >= 1", "ks: list(int)", Decoder::kShapes, "counted: bool"}),
};

}  // namespace
}  // namespace grace
