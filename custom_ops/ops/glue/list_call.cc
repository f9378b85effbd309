#include "ops/glue/list_call.h"

#include "ops/glue/status.h"

namespace grace {
namespace {

int64_t ElementsOf(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

}  // namespace

TF_DataType ListAttributes::Type(const char* name) const {
  Status status;
  TF_DataType type = TF_FLOAT;
  TF_OpKernelConstruction_GetAttrType(construction_, name, &type, status);
  status.Check();
  return type;
}

std::vector<float> ListAttributes::Floats(const char* name) const {
  Status status;
  int32_t size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &size, &bytes, status);
  status.Check();
  std::vector<float> values(size);
  TF_OpKernelConstruction_GetAttrFloatList(construction_, name, values.data(), size, status);
  status.Check();
  return values;
}

std::vector<Shape> ListAttributes::Shapes(const char* of_ranks, const char* of_dims) const {
  const std::vector<int64_t> ranks = Lengths(of_ranks), dims = Lengths(of_dims);
  Require(Sum(ranks) == static_cast<int64_t>(dims.size()), "The ranks and the dims do not fit.");
  std::vector<Shape> shapes;
  auto dim = dims.begin();
  for (const int64_t rank : ranks) {
    shapes.emplace_back(dim, dim + rank);
    dim += rank;
  }
  return shapes;
}

Tensor ListCall::Allocate(int i, TF_DataType type, const Shape& shape) const {
  Status status;
  const bool narrow = type == kFloat16 || type == kBfloat16 || type == kUint16;
  const size_t size = narrow ? 2 : type == TF_BOOL || type == kInt8 ? 1 : 4;
  Tensor output(TF_AllocateOutput(context_, i, type, shape.data(), static_cast<int>(shape.size()),
                                  size * ElementsOf(shape), status));
  status.Check();
  return output;
}

Tensor ListCall::Updated(int i) const {
  Tensor output = Forward(i, i);
  const Tensor input = Input(i);
  const float* from = input.data<float>();
  float* to = output.data<float>();
  if (from != to) Copy(from, input.elements(), to);
  return output;
}

EncodedList::EncodedList(const ListCall& call, int tensors, int residuals, int first) {
  Require(residuals == 0 || residuals == tensors, "Every tensor needs its residual, or none.");
  tensors_.reserve(3 * tensors);
  for (int i = 0; i < tensors; ++i) {
    // Before any other Tensor holds the input.
    if (residuals) tensors_.push_back(call.Forward(first + i, i));
    float* residual_out = residuals ? tensors_.back().data<float>() : nullptr;
    tensors_.push_back(call.Input(i));
    const Tensor& x = tensors_.back();
    const int64_t n = x.elements();
    Require(n >= 1 && n <= INT32_MAX, "A tensor must have from 1 to 2^31 - 1 elements.");
    EncodeInput source{x.data<float>(), nullptr, residual_out, n};
    if (residuals) {
      tensors_.push_back(call.Input(tensors + i));
      Require(tensors_.back().elements() == n, "A residual must have its tensor's shape.");
      source.residual = tensors_.back().data<float>();
    }
    sources_.push_back(source);
  }
}

DecodedList::DecodedList(const ListCall& call, const std::vector<Shape>& shapes) {
  Require(static_cast<int>(shapes.size()) == call.outputs() - 1, "Every output needs its shape.");
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensors_.push_back(call.Allocate(static_cast<int>(i), TF_FLOAT, shapes[i]));
    const int64_t n = ElementsOf(shapes[i]);
    Require(n <= INT32_MAX, "A tensor must have at most 2^31 - 1 elements.");
    targets_.push_back({tensors_.back().data<float>(), n});
  }
}

int64_t Sum(const std::vector<int64_t>& numbers) {
  int64_t sum = 0;
  for (const int64_t number : numbers) sum += number;
  return sum;
}

void RequireNone(const std::string& fault) {
  if (!fault.empty()) throw Invalid(fault);
}

}  // namespace grace
