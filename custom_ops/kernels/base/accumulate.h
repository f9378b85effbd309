// What is to be compressed: the gradient times a number, plus what earlier steps left over.
#pragma once

#include <cstdint>

namespace grace {

// A tensor to be accumulated: x * multiplier + residual, where a multiplier of 1 and a residual of
// null leave out the product and the sum. As TensorFlow computes them: each on its own, a denormal
// on the way, given or arising, counting as zero of its sign.
struct Accumulated {
  const float* x;
  const float* residual;
  float multiplier;

  // Elements [begin, begin + n), n <= kChunk: computed into `room`, or x's own if nothing is to do.
  const float* At(int64_t begin, int64_t n, float* room) const;
};

}  // namespace grace
