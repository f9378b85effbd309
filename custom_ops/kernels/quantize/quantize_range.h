// Part of a tensor to codes, on the calling thread: what Quantize and QuantizeList share.
#pragma once

#include "kernels/base/philox_blocks.h"
#include "kernels/quantize/quantize.h"

namespace grace {

// A tensor of n elements with the scales of all its blocks.
struct QuantizeJob {
  const float* scales;
  int64_t n;
  Quantization quantization;
  const PhiloxSchedule* schedule;  // null: to the nearest
  // What will be read next, to be fetched meanwhile; null for nothing.
  const float* next[2] = {nullptr, nullptr};
  uint32_t stratum = 0;  // added to every random word
};

// Elements [begin, end) of the tensor, which x points at the first of, begin at the beginning of a
// group and end at the end of one or of the tensor. `words` and `residual_out` are those of the
// tensor. Unless it is null, residual_out becomes x less its decoded value, in the same way as
// TensorFlow subtracts.
void QuantizeRange(const QuantizeJob& job, int64_t begin, int64_t end, const float* x,
                   uint32_t* words, float* residual_out);

}  // namespace grace
