// Momentum correction: turns gradients into momenta, which add up until they are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"

namespace grace {

// The momentum of one tensor; `next` is u itself or apart from it.
struct MomentumState {
  const float* u;
  float* next;
};

// With g = x * multiplier * scale: next = momentum * u + g and acc = v + next, or with nesterov
// acc = (v + g) + momentum * next. Every product and sum is rounded.
struct MomentumStep {
  float multiplier;
  float scale;
  float momentum;
  bool nesterov;
};

// Computes this for `count` elements and returns whether all of acc is finite; next may be u.
// Denormals count as zeros of their sign; the caller holds a DenormalsAreZero.
using Advance = bool (*)(const float* x, const float* u, const float* v, const MomentumStep& step,
                         int64_t count, float* next, float* acc);
Advance ChooseAdvance();

// For each tensor limit / norm where the norm of x * multiplier exceeds the limit, else 1.
std::vector<float> ClipScales(const Executor& executor, const std::vector<EncodeInput>& sources,
                              float multiplier, float limit);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `scales` has one float a tensor.
extern "C" {

int grace_cuda_clip_scales(const grace::EncodeInput* sources, int64_t count, float multiplier,
                           float limit, float* scales, void* workspace, size_t* bytes,
                           void* stream);

}  // extern "C"
