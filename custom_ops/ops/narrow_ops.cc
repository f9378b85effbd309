// Stores what a memory holds between steps in fewer bits.
#include "kernels/quantize/narrow.h"
#include "kernels/quantize/quantize_list.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// 127 levels on each side of zero and a scale for each 256 elements, as
// ops/reference/narrow_storage.py says.
const ListCode kBytes{{127, 8, 256}, Norm::kMax};

// The bytes of one tensor: words of codes, then scales.
int64_t WordsOf(int64_t n) { return kBytes.WordsOf(n) + kBytes.ScalesOf(n); }

// The elements of x.
int64_t CheckedElements(const Tensor& x) {
  const int64_t n = x.elements();
  Require(n >= 1 && n <= INT32_MAX, "A tensor must have from 1 to 2^31 - 1 elements.");
  return n;
}

struct NarrowOp {
  explicit NarrowOp(const Attributes& attributes) : streams(attributes, attributes.Int("N")) {}

  Streams streams;
};

struct ToHalvesListOp : NarrowOp {
  using NarrowOp::NarrowOp;

  void Compute(const Call& call) const {
    std::vector<Narrowed> list;
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor x = call.Input(i);
      const int64_t n = CheckedElements(x);
      list.push_back({x.data<float>(), call.New<uint16_t>(i, x.shape()), n, streams.Of(i)});
    }
    call.Run(GRACE_CUDA(to_halves_list), ToHalvesList, list, Streams::KeyOf(call));
  }
};

struct FromHalvesListOp {
  explicit FromHalvesListOp(const Attributes&) {}

  void Compute(const Call& call) const {
    std::vector<Widened> list;
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor halves = call.Input(i);
      const int64_t n = CheckedElements(halves);
      list.push_back({halves.data<uint16_t>(), call.New<float>(i, halves.shape()), n});
    }
    call.Run(GRACE_CUDA(from_halves_list), FromHalvesList, list);
  }
};

struct ToBytesListOp : NarrowOp {
  using NarrowOp::NarrowOp;

  void Compute(const Call& call) const {
    std::vector<Encoded> list;
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor x = call.Input(i);
      const int64_t n = CheckedElements(x);
      auto* words = reinterpret_cast<uint32_t*>(call.New<int8_t>(i, {WordsOf(n), 4}));
      auto* scales = reinterpret_cast<float*>(words + kBytes.WordsOf(n));
      const Accumulated source{x.data<float>(), nullptr, 1.0f};
      list.push_back({source, n, words, scales, nullptr, streams.Of(i)});
    }
    const PhiloxKey key = Streams::KeyOf(call);
    call.Run(GRACE_CUDA(quantize_list), QuantizeList, list, kBytes, &key);
  }
};

struct FromBytesListOp : Decoder {
  using Decoder::Decoder;

  void Compute(const Call& call) const {
    std::vector<Decoded> list;
    const uint32_t* base = nullptr;
    for (const DecodeOutput& target : Targets(call, 0, Elements::kAny)) {
      Require(target.n >= 1, "A tensor must have elements.");
      const int i = static_cast<int>(list.size());
      const auto* words = call.Given<uint32_t>(i, {WordsOf(target.n), 4});
      if (i == 0) base = words;
      // The kernel counts from one row, which all tensors are taken for parts of.
      const auto at = (reinterpret_cast<intptr_t>(words) - reinterpret_cast<intptr_t>(base)) / 4;
      list.push_back({target.n, at, at + kBytes.WordsOf(target.n), target.total});
    }
    const Rows rows{base, reinterpret_cast<const float*>(base), 1, 0, 0};
    call.Run(GRACE_CUDA(dequantize_list), DequantizeList, rows, list, kBytes.quantization, 1.0f);
  }
};

const bool registered[] = {
    Register<ToHalvesListOp>("Grace>ToHalvesList", {"xs: N * float", Streams::kInputs},
                             {"halves: N * uint16"}, {"N: int >= 1", Streams::kAttributes}),
    Register<FromHalvesListOp>("Grace>FromHalvesList", {"halves: N * uint16"}, {"xs: N * float"},
                               {"N: int >= 1"}),
    Register<ToBytesListOp>("Grace>ToBytesList", {"xs: N * float", Streams::kInputs},
                            {"stored: N * int8"}, {"N: int >= 1", Streams::kAttributes}),
    Register<FromBytesListOp>("Grace>FromBytesList", {"stored: N * int8"}, {"xs: N * float"},
                              {"N: int >= 1", Decoder::kShapes}),
};

}  // namespace
}  // namespace grace
