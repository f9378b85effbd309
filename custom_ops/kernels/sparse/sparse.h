// Vectors given by the indices and values of some elements.
#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"

namespace grace {

// values[i] = x[indices[i]]. False if an index is outside [0, n); then values are meaningless.
bool Gather(const Executor& executor, const float* x, int64_t n, const int32_t* indices, int64_t k,
            float* values);

enum class Scatter { kDone, kOutside, kUnordered };

// The sum of the workers' sparse vectors, from zero, in worker order; denormals, given or arising,
// count as 0. values and indices are [workers][k]; of worker w the first counts[w] entries count,
// at least 0 and at most k, or all where counts is null. Within a worker indices must ascend
// strictly and be in [0, n).
Scatter ScatterSum(const Executor& executor, const float* values, const int32_t* indices,
                   const int32_t* counts, int64_t workers, int64_t k, int64_t n, float* out);

}  // namespace grace
