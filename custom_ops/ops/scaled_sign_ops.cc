#include "kernels/signs/momentum_signs.h"
#include "kernels/signs/scaled_signs.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

// How the tensors of a list share levels, from the attributes `block` and `columns`.
struct CellsOfList {
  explicit CellsOfList(const ListAttributes& attributes)
      : block(attributes.Int("block")), columns(attributes.Lengths("columns")) {
    Require(block == 0 || (block >= kGroup && (block & (block - 1)) == 0),
            "A block must be a power of two of at least 32 elements, or 0 for whole tensors.");
  }

  // Of tensors of these sizes.
  std::vector<Cells> Of(const std::vector<int64_t>& sizes) const {
    Require(columns.size() == sizes.size(), "Every tensor needs its number of columns.");
    std::vector<Cells> cells;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Require(columns[i] >= 1 && sizes[i] % columns[i] == 0, "The columns do not fit a tensor.");
      cells.push_back({block, columns[i]});
    }
    return cells;
  }

  int64_t block;
  std::vector<int64_t> columns;
};

struct ScaledSignListOp {
  explicit ScaledSignListOp(const ListAttributes& attributes)
      : cells(attributes),
        sides(static_cast<int>(attributes.Int("S"))),
        tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")) {
    Require(sides == 1 || sides == 2, "There must be one side, or two.");
  }

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, residuals, 1 + sides);
    std::vector<int64_t> sizes;
    int64_t words_size = 0, levels_size = 0;
    for (const EncodeInput& source : list.sources()) sizes.push_back(source.n);
    const std::vector<Cells> own = cells.Of(sizes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      words_size += PackedWords(sizes[i], 1);
      levels_size += own[i].Count(sizes[i]);
    }
    const Tensor words = call.Vector(0, TF_INT32, words_size);
    std::vector<Tensor> levels;
    for (int side = 0; side < sides; ++side) {
      levels.push_back(call.Vector(1 + side, TF_FLOAT, levels_size));
    }
    float* low = sides == 2 ? levels[0].data<float>() : nullptr;
    float* high = levels[sides - 1].data<float>();
    uint32_t* word = words.data<uint32_t>();
    std::vector<ScaledSigns> parts;
    int64_t words_at = 0, levels_at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      parts.push_back({word + words_at, low ? low + levels_at : nullptr, high + levels_at});
      words_at += PackedWords(sizes[i], 1);
      levels_at += own[i].Count(sizes[i]);
    }
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(scaled_sign_list), list.sources().data(), int64_t{tensors},
                      multiplier, own.data(), parts.data(), call.NewBool(1 + sides + residuals));
    }
    call.SetBool(1 + sides + residuals,
                 ScaledSignList(call.executor(), list.sources(), multiplier, own, parts));
  }

  CellsOfList cells;
  int sides, tensors, residuals;
  float multiplier;
};

struct SumScaledSignListOp {
  explicit SumScaledSignListOp(const ListAttributes& attributes)
      : cells(attributes),
        sides(static_cast<int>(attributes.Int("S"))),
        shapes(attributes.Shapes()) {
    Require(sides == 1 || sides == 2, "There must be one side, or two.");
  }

  void Compute(const ListCall& call) const {
    const Tensor words = call.Input(0, 2), first = call.Input(1, 2), high = call.Input(sides, 2);
    Require(words.size(0) >= 1, "There must be a worker.");
    Require(words.size(0) == first.size(0) && words.size(0) == high.size(0),
            "Words and levels are of different workers.");
    const DecodedList list(call, shapes);
    const std::vector<int64_t> sizes = Lengths(list.targets());
    const std::vector<Cells> own = cells.Of(sizes);
    int64_t words_size = 0, levels_size = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      words_size += PackedWords(sizes[i], 1);
      levels_size += own[i].Count(sizes[i]);
    }
    Require(words.size(1) == words_size, "The words do not fit the shapes.");
    Require(first.size(1) == levels_size && high.size(1) == levels_size,
            "The levels do not fit the shapes.");
    const ScaledRows rows{words.data<uint32_t>(),
                          sides == 2 ? first.data<float>() : nullptr,
                          high.data<float>(),
                          words.size(0),
                          words_size,
                          levels_size};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(sum_scaled_sign_list), &rows, own.data(), list.targets().data(),
                      int64_t(own.size()), call.Scalar(1 + sides),
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, SumScaledSignList(call.executor(), rows, own, list.targets(),
                                                       call.Scalar(1 + sides)));
  }

  CellsOfList cells;
  int sides;
  std::vector<Shape> shapes;
};

struct MomentumSignListOp {
  explicit MomentumSignListOp(const ListAttributes& attributes)
      : tensors(static_cast<int>(attributes.Int("N"))),
        multiplier(attributes.Float("multiplier")),
        momentum{attributes.Float("beta"), attributes.Float("rest")} {}

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, tensors, 1);
    int64_t size = 0;
    for (const EncodeInput& source : list.sources()) size += PackedWords(source.n, 1);
    const Tensor words = call.Vector(0, TF_INT32, size);
    std::vector<uint32_t*> own;
    uint32_t* word = words.data<uint32_t>();
    for (const EncodeInput& source : list.sources()) {
      own.push_back(word);
      word += PackedWords(source.n, 1);
    }
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(momentum_sign_list), list.sources().data(), int64_t{tensors},
                      multiplier, &momentum, own.data(), call.NewBool(1 + tensors));
    }
    call.SetBool(1 + tensors,
                 MomentumSignList(call.executor(), list.sources(), multiplier, momentum, own));
  }

  int tensors;
  float multiplier;
  Momentum momentum;
};

const bool registered[] = {
    RegisterList<ScaledSignListOp>(
        "Grace>ScaledSignList", {"xs: N * float", "residuals: M * float"},
        {"words: int32", "levels: S * float", "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "S: int >= 1", "multiplier: float", "block: int",
         "columns: list(int)"}),
    RegisterList<SumScaledSignListOp>(
        "Grace>SumScaledSignList", {"words: int32", "levels: S * float", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "S: int >= 1", "block: int", "columns: list(int)", "ranks: list(int)",
         "dims: list(int)"}),
    RegisterList<MomentumSignListOp>(
        "Grace>MomentumSignList", {"xs: N * float", "momenta: N * float"},
        {"words: int32", "averages: N * float", "finite: bool"},
        {"N: int >= 1", "multiplier: float", "beta: float", "rest: float"}),
    ListOnGpu<ScaledSignListOp>("Grace>ScaledSignList"),
    ListOnGpu<SumScaledSignListOp>("Grace>SumScaledSignList", {"factor"}),
    ListOnGpu<MomentumSignListOp>("Grace>MomentumSignList"),
};

}  // namespace
}  // namespace grace
