// The elements largest in magnitude.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace grace {

// The k elements of x whose bits without the sign are largest as integers, of equal ones those of
// lower index: indices ascend, values are x at them. Exact for any data. 1 <= k <= n < 2^31.
void TopK(const Executor& executor, const float* x, int64_t n, int64_t k, float* values,
          int32_t* indices);

}  // namespace grace
