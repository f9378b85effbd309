#include "kernels/base/strata.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/quantize/scales.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

Quantization ReadQuantization(const Attributes& attributes, bool minmax = false) {
  const int64_t levels = attributes.Int("levels"), bits = attributes.Int("bits");
  Require(bits >= 2 && bits <= 16, "There must be 2 to 16 bits.");
  Require(levels >= 1 && (minmax ? 1 : 2) * levels < int64_t{1} << bits,
          "The levels do not fit into the bits.");
  return {static_cast<int32_t>(levels), static_cast<int32_t>(bits), attributes.Int("block"),
          minmax};
}

ListCode ReadCode(const Attributes& attributes) {
  const int64_t norm = attributes.Int("norm");
  Require(norm >= 0 && norm <= 2, "The norm is 0, the maximum, 1, l2, or 2, minmax.");
  const ListCode code{ReadQuantization(attributes, norm == 2), static_cast<Norm>(norm)};
  Require(code.quantization.block >= 0,
          "A block must have at least one element, or 0 for whole tensors.");
  return code;
}

struct BlockScalesOp {
  explicit BlockScalesOp(const Attributes& attributes)
      : block(attributes.Int("block")), norm(attributes.Bool("l2") ? Norm::kL2 : Norm::kMax) {
    Require(block >= 1, "A block must have at least one element.");
  }

  void Compute(const Call& call) const {
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor x = call.Input(i, 1);
      float* scales = call.New<float>(i, {CeilDiv(x.size(), block)});
      if (x.size() == 0) continue;
      BlockScales(call.executor(), x.data<float>(), x.size(), block, norm, scales);
    }
  }

  int64_t block;
  Norm norm;
};

struct QuantizeOp {
  explicit QuantizeOp(const Attributes& attributes)
      : quantization(ReadQuantization(attributes)),
        stochastic(attributes.Bool("stochastic")),
        streams(attributes, attributes.Int("N")) {
    Require(quantization.block >= 1, "A block must have at least one element.");
  }

  void Compute(const Call& call) const {
    const int count = call.outputs();
    PhiloxKey key = Streams::KeyOf(call);
    for (int i = 0; i < count; ++i) {
      const Tensor x = call.Input(i, 1);
      const float* scales = call.Given<float>(count + i, {CeilDiv(x.size(), quantization.block)});
      uint32_t* words = call.New<uint32_t>(i, {PackedWords(x.size(), quantization.bits)});
      key.variable_draw = streams.Of(i);
      Quantize(call.executor(), x.data<float>(), scales, x.size(), quantization,
               stochastic ? &key : nullptr, words);
    }
  }

  Quantization quantization;
  bool stochastic;
  Streams streams;
};

struct QuantizeListOp : Encoder {
  explicit QuantizeListOp(const Attributes& attributes)
      : Encoder(attributes, "R"),
        code(ReadCode(attributes)),
        stochastic(attributes.Bool("stochastic")),
        strata(attributes.Int("strata")),
        order(attributes.Int("order")),
        streams(attributes, tensors) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 3, Elements::kAny);
    PhiloxKey key = Streams::KeyOf(call);
    const uint32_t worker = key.worker;
    if (strata) key.worker = kAll;
    uint32_t* words =
        call.New<uint32_t>(1, {Total(sources, [&](int64_t n) { return code.WordsOf(n); })});
    float* scales =
        call.New<float>(2, {Total(sources, [&](int64_t n) { return code.ScalesOf(n); })});
    std::vector<Encoded> list;
    for (size_t i = 0; i < sources.size(); ++i) {
      const EncodeInput& own = sources[i];
      const Accumulated source{own.x, own.residual, multiplier};
      list.push_back({source, own.n, words, scales, own.residual_out, streams.Of(i)});
      if (strata) {
        const auto permuted = static_cast<uint32_t>(streams.variables[i] << 8 | order);
        list.back().stratum = StratumOf({key.seed, key.worker, key.step, permuted}, worker, strata);
      }
      words += code.WordsOf(own.n);
      scales += code.ScalesOf(own.n);
    }
    call.Run(GRACE_CUDA(quantize_list), QuantizeList, list, code, stochastic ? &key : nullptr);
  }

  // The worker number of streams that all workers draw alike.
  static constexpr uint32_t kAll = 0xffffffff;

  ListCode code;
  bool stochastic;
  int64_t strata, order;
  Streams streams;
};

struct DequantizeListOp : Decoder {
  explicit DequantizeListOp(const Attributes& attributes)
      : Decoder(attributes), code(ReadCode(attributes)) {}

  void Compute(const Call& call) const {
    std::vector<Decoded> list;
    int64_t words_at = 0, scales_at = 0;
    for (const DecodeOutput& target : Targets(call, 1, Elements::kAny)) {
      list.push_back({target.n, words_at, scales_at, target.total});
      words_at += code.WordsOf(target.n);
      scales_at += code.ScalesOf(target.n);
    }
    const int64_t workers = call.Workers();
    const Rows rows{call.Given<uint32_t>(0, {workers, words_at}),
                    call.Given<float>(1, {workers, scales_at}), workers, words_at, scales_at};
    call.Run(GRACE_CUDA(dequantize_list), DequantizeList, rows, list, code.quantization,
             call.Scalar(2));
  }

  ListCode code;
};

const bool registered[] = {
    RegisterForCpu<BlockScalesOp>("Grace>BlockScales", {"xs: N * float"}, {"scales: N * float"},
                                  {"N: int >= 1", "block: int", "l2: bool"}, Vectors),
    RegisterForCpu<QuantizeOp>("Grace>Quantize",
                               {"xs: N * float", "scales: N * float", Streams::kInputs},
                               {"words: N * int32"},
                               {"N: int >= 1", "levels: int", "bits: int", "block: int",
                                "stochastic: bool", Streams::kAttributes},
                               Vectors),
    Register<QuantizeListOp>(
        "Grace>QuantizeList", {"xs: N * float", "residuals: R * float", Streams::kInputs},
        {"finite: bool", "words: int32", "scales: float", "residuals_out: R * float"},
        {"N: int >= 1", "R: int >= 0", "levels: int", "bits: int", "block: int", "norm: int",
         "stochastic: bool", "strata: int >= 0", "order: int", Streams::kAttributes,
         "multiplier: float"}),
    Register<DequantizeListOp>(
        "Grace>DequantizeList", {"words: int32", "scales: float", "factor: float"},
        {"finite: bool", "totals: N * float"},
        {"N: int >= 1", Decoder::kShapes, "levels: int", "bits: int", "block: int", "norm: int"}),
};

}  // namespace
}  // namespace grace
