// Collects the floats whose magnitude reaches a bound.
#pragma once

#include <cstdint>

namespace grace {

// The number of elements that a Collect may write beyond the last result.
constexpr int64_t kSlack = 16;

// Writes the index (first + i) and the bits of each of the `count` elements x[i] whose key, the
// bits without the sign, is at least `least`, which is at least 1; returns how many there are.
using Collect = int64_t (*)(const float* x, int64_t first, int64_t count, uint32_t least,
                            int32_t* indices, uint32_t* bits);
Collect ChooseCollect();

}  // namespace grace
