// Operations on whole lists of variables, fused with what the line does before and after them.
#include <numeric>

#include "kernels/base/strata.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/signs/signs.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

ListCode ReadCode(const Attributes& attributes) {
  const int64_t levels = attributes.Int("levels"), bits = attributes.Int("bits");
  const int64_t block = attributes.Int("block"), norm = attributes.Int("norm");
  Require(bits >= 2 && bits <= 16, "There must be 2 to 16 bits.");
  Require(norm >= 0 && norm <= 2, "The norm is 0, the maximum, 1, l2, or 2, minmax.");
  const bool minmax = norm == 2;
  Require(levels >= 1 && (minmax ? 1 : 2) * levels < int64_t{1} << bits,
          "The levels do not fit into the bits.");
  Require(block >= 0, "A block must have at least one element, or 0 for whole tensors.");
  return {{static_cast<int32_t>(levels), static_cast<int32_t>(bits), block, minmax},
          static_cast<Norm>(norm)};
}

// The shapes of a list's outputs, told as their ranks and the dimensions of all.
struct Shapes {
  explicit Shapes(const Attributes& attributes) {
    const std::vector<int64_t> ranks = attributes.Lengths("ranks");
    const std::vector<int64_t> dims = attributes.Lengths("dims");
    auto at = dims.begin();
    for (const int64_t rank : ranks) {
      Require(dims.end() - at >= rank, "The ranks do not fit the dimensions.");
      each.emplace_back(at, at + rank);
      sizes.push_back(std::accumulate(at, at + rank, int64_t{1}, std::multiplies<int64_t>()));
      at += rank;
    }
    Require(at == dims.end(), "The ranks do not fit the dimensions.");
  }

  std::vector<std::vector<int64_t>> each;
  std::vector<int64_t> sizes;
};

struct QuantizeListOp {
  explicit QuantizeListOp(const Attributes& attributes)
      : code(ReadCode(attributes)),
        stochastic(attributes.Bool("stochastic")),
        strata(attributes.Int("strata")),
        order(attributes.Int("order")),
        count(attributes.Int("N")),
        residuals(attributes.Int("R")),
        variables(attributes.Ints("variables")),
        draw(attributes.Int("draw")),
        multiplier(attributes.Float("multiplier")) {
    Require(residuals == 0 || residuals == count, "Every input needs its residual, or none has.");
    Require(static_cast<int64_t>(variables.size()) == count, "Every input needs its variable.");
  }

  void Compute(const Call& call) const {
    std::vector<Tensor> residual_out;  // before any other Tensor holds the inputs
    for (int i = 0; i < residuals; ++i) residual_out.push_back(call.Forward(3 + i, i));
    const FloatList xs(call, 0, count), left(call, count, residuals);
    const int stream = count + residuals;
    const uint32_t worker = call.Word(stream + 1);
    const PhiloxKey key{call.Word(stream), strata ? kAll : worker, call.Word(stream + 2), 0};
    int64_t words_size = 0, scales_size = 0;
    for (const Floats& x : xs.views()) {
      words_size += code.WordsOf(x.size);
      scales_size += code.ScalesOf(x.size);
    }
    const Tensor words = call.Vector(1, TF_INT32, words_size);
    const Tensor scales = call.Vector(2, TF_FLOAT, scales_size);
    uint32_t* word = words.data<uint32_t>();
    float* scale = scales.data<float>();
    std::vector<Encoded> list;
    for (int i = 0; i < count; ++i) {
      const Floats& x = xs.views()[i];
      const float* residual = nullptr;
      if (residuals) {
        Require(left.views()[i].size == x.size, "A residual must be of its input's shape.");
        residual = left.views()[i].data;
      }
      list.push_back({{x.data, residual, multiplier},
                      x.size,
                      word,
                      scale,
                      residuals ? residual_out[i].data<float>() : nullptr,
                      static_cast<uint32_t>(variables[i] << 8 | draw)});
      if (strata) {
        const auto permuted = static_cast<uint32_t>(variables[i] << 8 | order);
        list.back().stratum = StratumOf({key.seed, key.worker, key.step, permuted}, worker, strata);
      }
      word += code.WordsOf(x.size);
      scale += code.ScalesOf(x.size);
    }
    const PhiloxKey* drawn = stochastic ? &key : nullptr;
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(quantize_list), list.data(), int64_t(list.size()), code, drawn,
                      call.NewBool(0));
    }
    call.SetBool(0, QuantizeList(call.executor(), list, code, drawn));
  }

  // The worker number of streams that all workers draw alike.
  static constexpr uint32_t kAll = 0xffffffff;

  ListCode code;
  bool stochastic;
  int64_t strata, order;
  int64_t count, residuals;
  std::vector<int64_t> variables;
  int64_t draw;
  float multiplier;
};

struct DequantizeListOp {
  explicit DequantizeListOp(const Attributes& attributes)
      : code(ReadCode(attributes)), shapes(attributes) {}

  void Compute(const Call& call) const {
    const Tensor words = call.Input(0, 2), scales = call.Input(1, 2), factor = call.Input(2, 0);
    Require(words.size(0) == scales.size(0), "Words and scales are of different workers.");
    Require(words.size(0) >= 1, "There must be a worker.");
    Require(call.outputs() == static_cast<int>(shapes.each.size()) + 1,
            "Every output needs its shape.");
    std::vector<Tensor> totals;
    std::vector<Decoded> list;
    int64_t words_at = 0, scales_at = 0;
    for (size_t i = 0; i < shapes.each.size(); ++i) {
      totals.push_back(call.Shaped(i + 1, TF_FLOAT, shapes.each[i]));
      list.push_back({shapes.sizes[i], words_at, scales_at, totals.back().data<float>()});
      words_at += code.WordsOf(shapes.sizes[i]);
      scales_at += code.ScalesOf(shapes.sizes[i]);
    }
    Require(words.size(1) == words_at, "The words do not fit the shapes.");
    Require(scales.size(1) == scales_at, "There must be one scale for each block.");
    const Rows rows{words.data<uint32_t>(), scales.data<float>(), words.size(0), words_at,
                    scales_at};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(dequantize_list), rows, list.data(), int64_t(list.size()),
                      code.quantization, *factor.data<float>(), call.NewBool(0));
    }
    call.SetBool(
        0, DequantizeList(call.executor(), rows, list, code.quantization, *factor.data<float>()));
  }

  ListCode code;
  Shapes shapes;
};

struct SignListOp {
  explicit SignListOp(const Attributes& attributes) : multiplier(attributes.Float("multiplier")) {}

  void Compute(const Call& call) const {
    const FloatList xs(call, 0, call.inputs());
    const std::vector<EncodeInput> sources = xs.sources();
    const Tensor words = call.Vector(1, TF_INT32, Offsets(sources, SignWords).back());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(sign_list), sources.data(), int64_t(sources.size()), multiplier,
                      words.data<uint32_t>(), call.NewBool(0));
    }
    call.SetBool(0, PackSignsList(call.executor(), sources, multiplier, words.data<uint32_t>()));
  }

  float multiplier;
};

struct VoteListOp {
  explicit VoteListOp(const Attributes& attributes) : shapes(attributes) {}

  void Compute(const Call& call) const {
    const Tensor words = call.Input(0, 2), factor = call.Input(1, 0);
    Require(call.outputs() == static_cast<int>(shapes.each.size()),
            "Every output needs its shape.");
    std::vector<Tensor> totals;
    std::vector<DecodeOutput> list;
    for (size_t i = 0; i < shapes.each.size(); ++i) {
      totals.push_back(call.Shaped(i, TF_FLOAT, shapes.each[i]));
      list.push_back({totals.back().data<float>(), shapes.sizes[i]});
    }
    Require(words.size(1) == Offsets(list, SignWords).back(), "The words do not fit the shapes.");
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(vote_list), words.data<uint32_t>(), words.size(0), list.data(),
                      int64_t(list.size()), *factor.data<float>());
    }
    VoteSignsList(call.executor(), words.data<uint32_t>(), words.size(0), list,
                  *factor.data<float>());
  }

  Shapes shapes;
};

const bool registered[] = {
    Register<QuantizeListOp>(
        {"Grace>QuantizeList",
         {"xs: N * float", "residuals: R * float", "seed: int64", "worker: int64", "step: int64"},
         {"finite: bool", "words: int32", "scales: float", "residuals_out: R * float"},
         {"N: int >= 1", "R: int >= 0", "levels: int", "bits: int", "block: int", "norm: int",
          "stochastic: bool", "strata: int >= 0", "order: int", "variables: list(int)", "draw: int",
          "multiplier: float"},
         UnknownShapes}),
    Register<DequantizeListOp>({"Grace>DequantizeList",
                                {"words: int32", "scales: float", "factor: float"},
                                {"finite: bool", "totals: N * float"},
                                {"N: int >= 1", "ranks: list(int)", "dims: list(int)",
                                 "levels: int", "bits: int", "block: int", "norm: int"},
                                UnknownShapes}),
    Register<SignListOp>({"Grace>SignList",
                          {"xs: N * float"},
                          {"finite: bool", "words: int32"},
                          {"N: int >= 1", "multiplier: float"},
                          UnknownShapes}),
    OnGpu<QuantizeListOp>("Grace>QuantizeList", {"seed", "worker", "step"}),
    OnGpu<DequantizeListOp>("Grace>DequantizeList", {"factor"}),
    OnGpu<SignListOp>("Grace>SignList", {}),
    Register<VoteListOp>({"Grace>VoteList",
                          {"words: int32", "factor: float"},
                          {"totals: N * float"},
                          {"N: int >= 1", "ranks: list(int)", "dims: list(int)"},
                          UnknownShapes}),
    OnGpu<VoteListOp>("Grace>VoteList", {"factor"}),
};

}  // namespace
}  // namespace grace
