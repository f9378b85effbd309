// Whether every element is a number.
#pragma once

#include <cstdint>
#include <vector>

#include "list.h"
#include "parallel.h"

namespace grace {

bool AllFinite(const Executor& executor, const float* x, int64_t n);
bool AllFinite(const Executor& executor, const std::vector<Floats>& list);

}  // namespace grace
