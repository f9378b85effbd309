// Weighted sums of two lists of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"

namespace grace {

// One pair of tensors; `out` may be x.
struct Mixed {
  const float* x;
  const float* y;
  float* out;
  int64_t n;
};

// out = y * b + x * a, where each product and the sum are rounded separately, as in TensorFlow.
void MixList(const Executor& executor, const std::vector<Mixed>& list, float a, float b);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_mix_list(const grace::Mixed* list, int64_t count, float a, float b, void* workspace,
                        size_t* bytes, void* stream);

}  // extern "C"
