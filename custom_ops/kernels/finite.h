// Whether every element is a number.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace grace {

bool AllFinite(const Executor& executor, const float* x, int64_t n);

}  // namespace grace
