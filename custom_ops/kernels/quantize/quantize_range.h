// Quantizes a part of a tensor on the calling thread; Quantize and QuantizeList share it.
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
  uint32_t stratum = 0;  // added to every random word; of coarse words the upper half alone
};

// Quantizes elements [begin, end) of the tensor; x points at element `begin`. `begin` is the first
// element of a group, and `end` the end of a group or of the tensor. `words` and `residual_out`
// belong to the whole tensor. Unless it is null, residual_out becomes x less its decoded value,
// subtracted as in TensorFlow.
void QuantizeRange(const QuantizeJob& job, int64_t begin, int64_t end, const float* x,
                   uint32_t* words, float* residual_out);

}  // namespace grace
