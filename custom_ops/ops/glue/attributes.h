// The attributes of a node, and how an operation refuses what does not fit.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "ops/glue/tf_c_api.h"

namespace grace {

// Becomes tf.errors.InvalidArgumentError.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void Require(bool fits, const char* otherwise) {
  if (!fits) throw Invalid(otherwise);
}

using Shape = std::vector<int64_t>;

// The attributes of a node; a missing one throws Invalid.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}
  int64_t Int(const char* name) const;
  float Float(const char* name) const;
  bool Bool(const char* name) const;
  TF_DataType Type(const char* name) const;
  std::vector<float> Floats(const char* name) const;
  // A list of integers, none of them negative.
  std::vector<int64_t> Lengths(const char* name) const;
  // The shapes that two attributes give: the rank of each, and the dimensions of all.
  std::vector<Shape> Shapes(const char* ranks, const char* dims) const;

 private:
  template <class Value, class Get>
  Value Read(Get* get, const char* name) const;
  template <class Value, class Get>
  std::vector<Value> ReadList(Get* get, const char* name) const;

  TF_OpKernelConstruction* construction_;
};

}  // namespace grace
