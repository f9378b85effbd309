#include "ops/glue/attributes.h"

#include "ops/glue/status.h"

namespace grace {

template <class Value, class Get>
Value Attributes::Read(Get* get, const char* name) const {
  Status status;
  Value value{};
  get(construction_, name, &value, status);
  status.Check();
  return value;
}

template <class Value, class Get>
std::vector<Value> Attributes::ReadList(Get* get, const char* name) const {
  Status status;
  int32_t size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &size, &bytes, status);
  status.Check();
  std::vector<Value> values(size);
  get(construction_, name, values.data(), size, status);
  status.Check();
  return values;
}

int64_t Attributes::Int(const char* name) const {
  return Read<int64_t>(TF_OpKernelConstruction_GetAttrInt64, name);
}

float Attributes::Float(const char* name) const {
  return Read<float>(TF_OpKernelConstruction_GetAttrFloat, name);
}

bool Attributes::Bool(const char* name) const {
  return Read<unsigned char>(TF_OpKernelConstruction_GetAttrBool, name) != 0;
}

TF_DataType Attributes::Type(const char* name) const {
  return Read<TF_DataType>(TF_OpKernelConstruction_GetAttrType, name);
}

std::vector<float> Attributes::Floats(const char* name) const {
  return ReadList<float>(TF_OpKernelConstruction_GetAttrFloatList, name);
}

std::vector<int64_t> Attributes::Lengths(const char* name) const {
  const auto lengths = ReadList<int64_t>(TF_OpKernelConstruction_GetAttrInt64List, name);
  for (const int64_t length : lengths) Require(length >= 0, "A length must not be negative.");
  return lengths;
}

std::vector<Shape> Attributes::Shapes(const char* of_ranks, const char* of_dims) const {
  const std::vector<int64_t> ranks = Lengths(of_ranks), dims = Lengths(of_dims);
  std::vector<Shape> shapes;
  auto dim = dims.begin();
  for (const int64_t rank : ranks) {
    Require(dims.end() - dim >= rank, "The ranks do not fit the dimensions.");
    shapes.emplace_back(dim, dim + rank);
    dim += rank;
  }
  Require(dim == dims.end(), "The ranks do not fit the dimensions.");
  return shapes;
}

}  // namespace grace
