#include "kernels/signs/momentum_signs.h"
#include "kernels/signs/scaled_signs.h"
#include "kernels/signs/signs.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct SignListOp : Encoder {
  explicit SignListOp(const Attributes& attributes) : Encoder(attributes, nullptr) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, kNone, Elements::kAny);
    uint32_t* words = call.New<uint32_t>(1, {Total(sources, SignWords)});
    call.Run(GRACE_CUDA(sign_list), PackSignsList, sources, multiplier, words);
  }
};

struct VoteListOp : Decoder {
  using Decoder::Decoder;

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call, 0, Elements::kAny);
    const int64_t workers = call.Workers(0);
    const uint32_t* words = call.Given<uint32_t>(0, {workers, Total(targets, SignWords)});
    call.Run(GRACE_CUDA(vote_list), VoteSignsList, words, workers, targets, call.Scalar(1));
  }
};

// How the tensors of a list share levels, and whether a tensor has levels for one side or for two.
struct Levels {
  explicit Levels(const Attributes& attributes)
      : sides(static_cast<int>(attributes.Int("S"))),
        block(attributes.Int("block")),
        columns(attributes.Lengths("columns")) {
    Require(sides == 1 || sides == 2, "There must be one side, or two.");
    Require(block == 0 || (block >= kGroup && (block & (block - 1)) == 0),
            "A block must be a power of two of at least 32 elements, or 0 for whole tensors.");
    Require(static_cast<int64_t>(columns.size()) == attributes.Int("N"),
            "Every tensor needs its number of columns.");
  }

  template <class List>
  std::vector<Cells> CellsOf(const List& list) const {
    std::vector<Cells> cells;
    for (size_t i = 0; i < list.size(); ++i) {
      Require(columns[i] >= 1 && list[i].n % columns[i] == 0, "The columns do not fit a tensor.");
      cells.push_back({block, columns[i]});
    }
    return cells;
  }
  // The number of levels of one side.
  template <class List>
  static int64_t Count(const List& list, const std::vector<Cells>& cells) {
    int64_t count = 0;
    for (size_t i = 0; i < list.size(); ++i) count += cells[i].Count(list[i].n);
    return count;
  }

  int sides;
  int64_t block;
  std::vector<int64_t> columns;
};

struct ScaledSignListOp : Encoder {
  explicit ScaledSignListOp(const Attributes& attributes)
      : Encoder(attributes), levels(attributes) {}

  void Compute(const Call& call) const {
    const int sides = levels.sides;
    const std::vector<EncodeInput> sources = Sources(call, 1 + sides);
    const std::vector<Cells> cells = levels.CellsOf(sources);
    const int64_t count = Levels::Count(sources, cells);
    uint32_t* words = call.New<uint32_t>(0, {Total(sources, SignWords)});
    float* low = sides == 2 ? call.New<float>(1, {count}) : nullptr;
    float* high = call.New<float>(sides, {count});
    std::vector<ScaledSigns> parts;
    for (size_t i = 0; i < sources.size(); ++i) {
      parts.push_back({words, low, high});
      words += SignWords(sources[i].n);
      if (low) low += cells[i].Count(sources[i].n);
      high += cells[i].Count(sources[i].n);
    }
    call.Run(GRACE_CUDA(scaled_sign_list), ScaledSignList, sources, multiplier, cells, parts);
  }

  Levels levels;
};

struct SumScaledSignListOp : Decoder {
  explicit SumScaledSignListOp(const Attributes& attributes)
      : Decoder(attributes), levels(attributes) {}

  void Compute(const Call& call) const {
    const int sides = levels.sides;
    const std::vector<DecodeOutput> targets = Targets(call);
    const std::vector<Cells> cells = levels.CellsOf(targets);
    const int64_t words = Total(targets, SignWords), count = Levels::Count(targets, cells);
    const int64_t workers = call.Workers();
    const ScaledRows rows{call.Given<uint32_t>(0, {workers, words}),
                          sides == 2 ? call.Given<float>(1, {workers, count}) : nullptr,
                          call.Given<float>(sides, {workers, count}),
                          workers,
                          words,
                          count};
    call.Run(GRACE_CUDA(sum_scaled_sign_list), SumScaledSignList, rows, cells, targets,
             call.Scalar(1 + sides));
  }

  Levels levels;
};

// The momenta are the residuals.
struct MomentumSignListOp : Encoder {
  explicit MomentumSignListOp(const Attributes& attributes)
      : Encoder(attributes, "N"), momentum{attributes.Float("beta"), attributes.Float("rest")} {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 1);
    uint32_t* words = call.New<uint32_t>(0, {Total(sources, SignWords)});
    std::vector<uint32_t*> each_words;
    for (const EncodeInput& source : sources) {
      each_words.push_back(words);
      words += SignWords(source.n);
    }
    call.Run(GRACE_CUDA(momentum_sign_list), MomentumSignList, sources, multiplier, momentum,
             each_words);
  }

  Momentum momentum;
};

const bool registered[] = {
    Register<SignListOp>("Grace>SignList", {"xs: N * float"}, {"finite: bool", "words: int32"},
                         {"N: int >= 1", "multiplier: float"}),
    Register<VoteListOp>("Grace>VoteList", {"words: int32", "factor: float"}, {"totals: N * float"},
                         {"N: int >= 1", Decoder::kShapes}),
    Register<ScaledSignListOp>("Grace>ScaledSignList", {Encoder::kInputs},
                               {"words: int32", "levels: S * float", Encoder::kOutputs},
                               {"N: int >= 1", "M: int >= 0", "S: int >= 1", "multiplier: float",
                                "block: int", "columns: list(int)"}),
    Register<SumScaledSignListOp>(
        "Grace>SumScaledSignList", {"words: int32", "levels: S * float", "factor: float"},
        {Decoder::kOutputs},
        {"N: int >= 1", "S: int >= 1", "block: int", "columns: list(int)", Decoder::kShapes}),
    Register<MomentumSignListOp>(
        "Grace>MomentumSignList", {"xs: N * float", "momenta: N * float"},
        {"words: int32", "averages: N * float", "finite: bool"},
        {"N: int >= 1", "multiplier: float", "beta: float", "rest: float"}),
};

}  // namespace
}  // namespace grace
