// One bit an element: the sign of a moving average.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"

namespace grace {

// m = momentum * beta + (x * multiplier) * (1 - beta), and the signs of m. The momentum is a
// source's `residual`, m its `residual_out`; `words` has a place for each. Returns whether every m
// is finite.
struct Momentum {
  float beta, rest;  // rest: 1 - beta
};
bool MomentumSignList(const Executor& executor, const std::vector<EncodeInput>& sources,
                      float multiplier, const Momentum& momentum,
                      const std::vector<uint32_t*>& words);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_momentum_sign_list(const grace::EncodeInput* sources, int64_t count,
                                  float multiplier, const grace::Momentum* momentum,
                                  uint32_t* const* words, bool* finite, void* workspace,
                                  size_t* bytes, void* stream);

}  // extern "C"
