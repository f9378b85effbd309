// Computes the input of the compressors: the gradient times a number, plus a residual.
#pragma once

#include <cstdint>

namespace grace {

// A tensor x * multiplier + residual; a multiplier of 1 leaves out the product, a null residual the
// sum. As in TensorFlow, product and sum are rounded separately, and denormal inputs and results
// count as zeros of their sign.
struct Accumulated {
  const float* x;
  const float* residual;
  float multiplier;

  // Elements [begin, begin + n), n <= kChunk: computed into `room`, or a pointer into x where
  // there is neither product nor sum.
  const float* At(int64_t begin, int64_t n, float* room) const;
};

}  // namespace grace
