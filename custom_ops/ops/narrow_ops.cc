// What is kept between steps, in fewer bits.
#include <utility>

#include "kernels/quantize/narrow.h"
#include "kernels/quantize/quantize_list.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

// 127 levels on each side of zero and a scale for each 256 elements, as
// ops/reference/narrow_storage.py says.
const ListCode kBytes{{127, 8, 256}, Norm::kMax};

// The bytes of one tensor: words of codes, then scales.
int64_t WordsOf(int64_t n) { return kBytes.WordsOf(n) + kBytes.ScalesOf(n); }

// The random streams of a list, whose three words come after `tensors` inputs.
struct Streams {
  explicit Streams(const ListAttributes& attributes)
      : variables(attributes.Ints("variables")), draw(attributes.Int("draw")) {
    Require(static_cast<int64_t>(variables.size()) == attributes.Int("N"),
            "Every input needs its variable.");
  }
  PhiloxKey KeyOf(const ListCall& call) const {
    const int tensors = static_cast<int>(variables.size());
    return {call.Word(tensors), call.Word(tensors + 1), call.Word(tensors + 2), 0};
  }
  uint32_t Of(size_t i) const { return static_cast<uint32_t>(variables[i] << 8 | draw); }

  std::vector<int64_t> variables;
  int64_t draw;
};

// The tensors of a call, which own what kernels are shown of them.
class Tensors {
 public:
  template <class T>
  T* Add(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return tensors_.back().data<T>();
  }

 private:
  std::vector<Tensor> tensors_;
};

// The elements of x, and its shape.
int64_t Measured(const Tensor& x, Shape* shape) {
  const int64_t n = x.elements();
  Require(n >= 1 && n <= INT32_MAX, "A tensor must have from 1 to 2^31 - 1 elements.");
  for (int axis = 0; axis < x.rank(); ++axis) shape->push_back(x.size(axis));
  return n;
}

struct ToHalvesListOp {
  explicit ToHalvesListOp(const ListAttributes& attributes) : streams(attributes) {}

  void Compute(const ListCall& call) const {
    Tensors held;
    std::vector<Narrowed> list;
    for (int i = 0; i < call.outputs(); ++i) {
      Tensor x = call.Input(i);
      Shape shape;
      const int64_t n = Measured(x, &shape);
      uint16_t* halves = held.Add<uint16_t>(call.Allocate(i, kUint16, shape));
      list.push_back({held.Add<float>(std::move(x)), halves, n, streams.Of(i)});
    }
    const PhiloxKey key = streams.KeyOf(call);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(to_halves_list), list.data(), int64_t(list.size()), &key);
    }
    ToHalvesList(call.executor(), list, key);
  }

  Streams streams;
};

struct FromHalvesListOp {
  explicit FromHalvesListOp(const ListAttributes&) {}

  void Compute(const ListCall& call) const {
    Tensors held;
    std::vector<Widened> list;
    for (int i = 0; i < call.outputs(); ++i) {
      Tensor halves = call.Input(i);
      Shape shape;
      const int64_t n = Measured(halves, &shape);
      float* x = held.Add<float>(call.Allocate(i, TF_FLOAT, shape));
      list.push_back({held.Add<uint16_t>(std::move(halves)), x, n});
    }
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(from_halves_list), list.data(), int64_t(list.size()));
    }
    FromHalvesList(call.executor(), list);
  }
};

struct ToBytesListOp {
  explicit ToBytesListOp(const ListAttributes& attributes) : streams(attributes) {}

  void Compute(const ListCall& call) const {
    Tensors held;
    std::vector<Encoded> list;
    for (int i = 0; i < call.outputs(); ++i) {
      Tensor x = call.Input(i);
      Shape shape;
      const int64_t n = Measured(x, &shape);
      uint32_t* words = held.Add<uint32_t>(call.Allocate(i, kInt8, {WordsOf(n), 4}));
      float* scales = reinterpret_cast<float*>(words + kBytes.WordsOf(n));
      const Accumulated source{held.Add<float>(std::move(x)), nullptr, 1.0f};
      list.push_back({source, n, words, scales, nullptr, streams.Of(i)});
    }
    const PhiloxKey key = streams.KeyOf(call);
    if (call.on_gpu()) {
      const Tensor finite = call.Workspace(sizeof(bool));
      return call.Run(GRACE_CUDA(quantize_list), list.data(), int64_t(list.size()), kBytes, &key,
                      finite.data<bool>());
    }
    QuantizeList(call.executor(), list, kBytes, &key);
  }

  Streams streams;
};

struct FromBytesListOp {
  explicit FromBytesListOp(const ListAttributes& attributes) : shapes(attributes.Shapes()) {}

  void Compute(const ListCall& call) const {
    Require(call.outputs() == static_cast<int>(shapes.size()), "Every output needs its shape.");
    Tensors held;
    std::vector<Decoded> list;
    const uint32_t* base = nullptr;
    for (int i = 0; i < call.outputs(); ++i) {
      Tensor stored = call.Input(i, 2), x = call.Allocate(i, TF_FLOAT, shapes[i]);
      const int64_t n = x.elements();
      Require(n >= 1 && stored.size(0) == WordsOf(n) && stored.size(1) == 4,
              "What is stored does not fit its shape.");
      const uint32_t* words = held.Add<uint32_t>(std::move(stored));
      if (i == 0) base = words;
      // The kernel counts from one row, which all tensors are taken for parts of.
      const auto at = (reinterpret_cast<intptr_t>(words) - reinterpret_cast<intptr_t>(base)) / 4;
      list.push_back({n, at, at + kBytes.WordsOf(n), held.Add<float>(std::move(x))});
    }
    const Rows rows{base, reinterpret_cast<const float*>(base), 1, 0, 0};
    if (call.on_gpu()) {
      const Tensor finite = call.Workspace(sizeof(bool));
      return call.Run(GRACE_CUDA(dequantize_list), rows, list.data(), int64_t(list.size()),
                      kBytes.quantization, 1.0f, finite.data<bool>());
    }
    DequantizeList(call.executor(), rows, list, kBytes.quantization, 1.0f);
  }

  std::vector<Shape> shapes;
};

const bool registered[] = {
    RegisterList<ToHalvesListOp>(
        "Grace>ToHalvesList", {"xs: N * float", "seed: int64", "worker: int64", "step: int64"},
        {"halves: N * uint16"}, {"N: int >= 1", "variables: list(int)", "draw: int"}),
    RegisterList<FromHalvesListOp>("Grace>FromHalvesList", {"halves: N * uint16"},
                                   {"xs: N * float"}, {"N: int >= 1"}),
    RegisterList<ToBytesListOp>(
        "Grace>ToBytesList", {"xs: N * float", "seed: int64", "worker: int64", "step: int64"},
        {"stored: N * int8"}, {"N: int >= 1", "variables: list(int)", "draw: int"}),
    RegisterList<FromBytesListOp>("Grace>FromBytesList", {"stored: N * int8"}, {"xs: N * float"},
                                  {"N: int >= 1", "ranks: list(int)", "dims: list(int)"}),
    ListOnGpu<ToHalvesListOp>("Grace>ToHalvesList", {"seed", "worker", "step"}),
    ListOnGpu<FromHalvesListOp>("Grace>FromHalvesList"),
    ListOnGpu<ToBytesListOp>("Grace>ToBytesList", {"seed", "worker", "step"}),
    ListOnGpu<FromBytesListOp>("Grace>FromBytesList"),
};

}  // namespace
}  // namespace grace
