#include "kernels/codes/trits.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

int32_t ReadBits(const ListAttributes& attributes) {
  const int64_t bits = attributes.Int("bits");
  Require(bits == kTrits || (bits >= 2 && bits <= 16), "Fields have 2 to 16 bits; 0 means trits.");
  return static_cast<int32_t>(bits);
}

struct TernaryScalesListOp {
  explicit TernaryScalesListOp(const ListAttributes& attributes)
      : multiplier(attributes.Float("multiplier")), clip(attributes.Float("clip")) {}

  void Compute(const ListCall& call) const {
    const FloatList xs(call, 0, call.inputs());
    const Tensor scales = call.Vector(0, TF_FLOAT, call.inputs());
    const std::vector<EncodeInput> sources = xs.sources();
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(ternary_scales), sources.data(), int64_t(sources.size()),
                      multiplier, clip, scales.data<float>(), call.NewBool(1));
    }
    call.SetBool(1,
                 TernaryScales(call.executor(), sources, multiplier, clip, scales.data<float>()));
  }

  float multiplier, clip;
};

struct TernaryEncodeListOp {
  explicit TernaryEncodeListOp(const ListAttributes& attributes)
      : bits(ReadBits(attributes)),
        count(static_cast<int>(attributes.Int("N"))),
        variables(attributes.Ints("variables")),
        draw(attributes.Int("draw")),
        multiplier(attributes.Float("multiplier")) {
    Require(static_cast<int>(variables.size()) == count, "Every input needs its variable.");
  }

  void Compute(const ListCall& call) const {
    const FloatList xs(call, 0, count);
    const Tensor own = call.Input(count, 1), scales = call.Input(count + 1, 1);
    Require(own.size() == count && scales.size() == count, "Every input needs its scales.");
    std::vector<PhiloxKey> keys;
    for (const int64_t variable : variables) {
      keys.push_back({call.Word(count + 2), call.Word(count + 3), call.Word(count + 4),
                      static_cast<uint32_t>(variable << 8 | draw)});
    }
    const std::vector<EncodeInput> sources = xs.sources();
    const auto words_of = [this](int64_t n) { return TernaryWords(n, bits); };
    const Tensor words = call.Vector(0, TF_INT32, Offsets(sources, words_of).back());
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(ternary_encode), sources.data(), int64_t{count}, multiplier,
                      own.data<float>(), scales.data<float>(), bits, keys.data(),
                      words.data<uint32_t>());
    }
    TernaryEncode(call.executor(), sources, multiplier, own.data<float>(), scales.data<float>(),
                  bits, keys, words.data<uint32_t>());
  }

  int32_t bits;
  int count;
  std::vector<int64_t> variables;
  int64_t draw;
  float multiplier;
};

struct TernaryDecodeListOp {
  explicit TernaryDecodeListOp(const ListAttributes& attributes)
      : bits(ReadBits(attributes)), shapes(attributes.Shapes()) {}

  void Compute(const ListCall& call) const {
    const Tensor words = call.Input(0, 2), scales = call.Input(1, 2);
    const auto count = static_cast<int64_t>(shapes.size());
    Require(words.size(0) == scales.size(0), "Words and scales are of different workers.");
    Require(words.size(0) >= 1, "There must be a worker.");
    Require(scales.size(1) == count, "Every tensor needs its scale.");
    const DecodedList list(call, shapes);
    const auto words_of = [this](int64_t n) { return TernaryWords(n, bits); };
    Require(words.size(1) == Offsets(list.targets(), words_of).back(),
            "The words do not fit the shapes.");
    const TernaryRows rows{words.data<uint32_t>(), scales.data<float>(), words.size(0)};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(ternary_decode), rows, list.targets().data(), count, bits,
                      call.Scalar(2), call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1,
                 TernaryDecode(call.executor(), rows, list.targets(), bits, call.Scalar(2)));
  }

  int32_t bits;
  std::vector<Shape> shapes;
};

const bool registered[] = {
    RegisterList<TernaryScalesListOp>("Grace>TernaryScalesList", {"xs: N * float"},
                                      {"scales: float", "finite: bool"},
                                      {"N: int >= 1", "multiplier: float", "clip: float"}),
    RegisterList<TernaryEncodeListOp>(
        "Grace>TernaryEncodeList",
        {"xs: N * float", "own: float", "scales: float", "seed: int64", "worker: int64",
         "step: int64"},
        {"words: int32"},
        {"N: int >= 1", "bits: int", "variables: list(int)", "draw: int", "multiplier: float"}),
    RegisterList<TernaryDecodeListOp>(
        "Grace>TernaryDecodeList", {"words: int32", "scales: float", "factor: float"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "bits: int", "ranks: list(int)", "dims: list(int)"}),
    ListOnGpu<TernaryScalesListOp>("Grace>TernaryScalesList"),
    ListOnGpu<TernaryEncodeListOp>("Grace>TernaryEncodeList", {"seed", "worker", "step"}),
    ListOnGpu<TernaryDecodeListOp>("Grace>TernaryDecodeList", {"factor"}),
};

}  // namespace
}  // namespace grace
