// Weighted sums of two lists of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace grace {

// One pair of tensors; `out` may be x.
struct Mixed {
  const float* x;
  const float* y;
  float* out;
  int64_t n;
};

// out = y * b + x * a, each product and the sum rounded on its own, as TensorFlow computes them.
void MixList(const Executor& executor, const std::vector<Mixed>& list, float a, float b);

}  // namespace grace
