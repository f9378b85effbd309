// One scale for each block of elements.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace grace {

enum class Norm { kMax, kL2 };

// scales[ceil(n / block)]: the largest |x| of each block, or the root of its sum of squares, summed
// in double over adjacent pairs, then pairs of pairs. Below 2^-110 a scale is 0. Needs block >= 1.
void BlockScales(const Executor& executor, const float* x, int64_t n, int64_t block, Norm norm,
                 float* scales);

}  // namespace grace
