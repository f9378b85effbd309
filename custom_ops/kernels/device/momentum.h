// Momentum correction on the device, as momentum.h has it.
#pragma once

#include "../momentum.h"
#include "cuda.h"

namespace grace {

struct Advanced {
  float next, acc;
};

// Of one element. `step.scale` is unused: the tensor's scale may be known to the device alone.
__device__ inline Advanced AdvanceOne(float x, float u, float v, const MomentumStep& step,
                                      float scale) {
  const float g = MulZ(MulZ(x, step.multiplier), scale);
  const float next = AddZ(MulZ(step.momentum, u), g);
  if (!step.nesterov) return {next, AddZ(v, next)};
  return {next, AddZ(AddZ(v, g), MulZ(step.momentum, next))};
}

}  // namespace grace
