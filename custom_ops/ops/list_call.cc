#include "list_call.h"

#include <cstring>

#include "status.h"

namespace grace {
namespace {

Shape ShapeOf(const Tensor& tensor) {
  Shape shape;
  for (int axis = 0; axis < tensor.rank(); ++axis) shape.push_back(tensor.size(axis));
  return shape;
}

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
  const size_t size = type == kFloat16 || type == kBfloat16 ? 2 : type == TF_BOOL ? 1 : 4;
  Tensor output(TF_AllocateOutput(context_, i, type, shape.data(), static_cast<int>(shape.size()),
                                  size * ElementsOf(shape), status));
  status.Check();
  return output;
}

Tensor ListCall::Forward(int i) const {
  Status status;
  // Our own reference would keep TensorFlow from handing the buffer on.
  const Shape shape = ShapeOf(Input(i));
  int forwarded = -1;
  Tensor output(TF_ForwardInputOrAllocateOutput(context_, &i, 1, i, shape.data(),
                                                static_cast<int>(shape.size()), &forwarded,
                                                status));
  status.Check();
  if (forwarded < 0) {
    const Tensor input = Input(i);
    const float* from = input.data<float>();
    float* to = output.data<float>();
    executor().For(input.elements(), kGrain, [=](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, (end - begin) * sizeof *to);
    });
  }
  return output;
}

EncodedList::EncodedList(const ListCall& call, int tensors, int residuals, int first) {
  Require(residuals == 0 || residuals == tensors, "Every tensor needs its residual, or none.");
  tensors_.reserve(3 * tensors);
  for (int i = 0; i < tensors; ++i) {
    tensors_.push_back(call.Input(i));
    const Tensor& x = tensors_.back();
    const int64_t n = x.elements();
    Require(n >= 1 && n <= INT32_MAX, "A tensor must have from 1 to 2^31 - 1 elements.");
    Source source{x.data<float>(), nullptr, nullptr, n};
    if (residuals) {
      const Shape shape = ShapeOf(x);
      tensors_.push_back(call.Input(tensors + i));
      Require(tensors_.back().elements() == n, "A residual must have its tensor's shape.");
      source.residual = tensors_.back().data<float>();
      tensors_.push_back(call.Allocate(first + i, TF_FLOAT, shape));
      source.kept = tensors_.back().data<float>();
    }
    sources_.push_back(source);
  }
}

DecodedList::DecodedList(const ListCall& call, const std::vector<Shape>& shapes) {
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
