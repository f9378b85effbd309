// One bit an element: the sign of a moving average.
#pragma once

#include <cstdint>
#include <vector>

#include "compensate.h"
#include "parallel.h"

namespace grace {

// m = momentum * beta + (x * multiplier) * (1 - beta), and the signs of m. The momentum is a
// source's `residual`, m its `kept`; `words` has a place for each. Returns whether every m is finite.
struct Momentum {
  float beta, rest;  // rest: 1 - beta
};
bool MomentumSignList(const Executor& executor, const std::vector<Source>& sources,
                      float multiplier, const Momentum& momentum,
                      const std::vector<uint32_t*>& words);

}  // namespace grace
