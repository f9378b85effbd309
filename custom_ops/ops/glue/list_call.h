// Call and attributes for operations on lists: tensors of any shape, and outputs shaped like them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/sparse/scatter_list.h"
#include "ops/glue/op.h"

namespace grace {

constexpr TF_DataType kFloat16 = static_cast<TF_DataType>(19);
constexpr TF_DataType kBfloat16 = static_cast<TF_DataType>(14);
constexpr TF_DataType kUint16 = static_cast<TF_DataType>(17);
constexpr TF_DataType kInt8 = static_cast<TF_DataType>(6);

using Shape = std::vector<int64_t>;

class ListAttributes : public Attributes {
 public:
  explicit ListAttributes(TF_OpKernelConstruction* construction)
      : Attributes(construction), construction_(construction) {}
  TF_DataType Type(const char* name) const;
  std::vector<float> Floats(const char* name) const;
  // The shapes in the attributes `ranks` and `dims`, one after another.
  std::vector<Shape> Shapes(const char* ranks = "ranks", const char* dims = "dims") const;

 private:
  TF_OpKernelConstruction* construction_;
};

class ListCall : public Call {
 public:
  ListCall(TF_OpKernelContext* context, Place place) : Call(context, place), context_(context) {}

  // The i-th output as a new tensor.
  Tensor Allocate(int i, TF_DataType type, const Shape& shape) const;
  // The i-th output with the values of input i, in place where nothing else holds the input.
  Tensor Updated(int i) const;
  // The value of the i-th input, a float scalar.
  float Scalar(int i) const { return *Input(i, 0).data<float>(); }

 private:
  TF_OpKernelContext* context_;
};

// The inputs of an encoder: N tensors, then as many residuals or none; and its outputs
// `residual_out` from number `first` on, as many as there are residuals, each in its tensor's
// memory where it can.
class EncodedList {
 public:
  EncodedList(const ListCall& call, int tensors, int residuals, int first);
  const std::vector<EncodeInput>& sources() const { return sources_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<EncodeInput> sources_;
};

// The outputs of a decoder. All outputs but the last are tensors of the given shapes.
class DecodedList {
 public:
  DecodedList(const ListCall& call, const std::vector<Shape>& shapes);
  const std::vector<DecodeOutput>& targets() const { return targets_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<DecodeOutput> targets_;
};

int64_t Sum(const std::vector<int64_t>& numbers);
// The sentence for the faulty index that a launcher of the CUDA library has reported.
constexpr size_t kFaultBytes = 3 * sizeof(int32_t);
// Throws Invalid with the sentence that a kernel has returned, unless it is empty.
void RequireNone(const std::string& fault);

// As Register, for an operation with a constructor from ListAttributes and
// `Compute(const ListCall&) const`; Python sets the shapes.
template <class Op>
bool RegisterList(const char* name, std::initializer_list<const char*> inputs,
                  std::initializer_list<const char*> outputs,
                  std::initializer_list<const char*> attributes) {
  return Register<Op, ListAttributes, ListCall>({name, inputs, outputs, attributes, UnknownShapes});
}

// As OnGpu, for an operation of RegisterList.
template <class Op>
bool ListOnGpu(const char* name, std::initializer_list<const char*> host_inputs = {}) {
  return OnGpu<Op, ListAttributes, ListCall>(name, host_inputs);
}

}  // namespace grace
