// Gathers elements of a vector.
#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"

namespace grace {

// values[i] = x[indices[i]]. False if an index is outside [0, n); then values are meaningless.
bool Gather(const Executor& executor, const float* x, int64_t n, const int32_t* indices, int64_t k,
            float* values);

}  // namespace grace
