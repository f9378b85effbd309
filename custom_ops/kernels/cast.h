// Numbers of 16 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "compensate.h"
#include "parallel.h"
#include "scatter_list.h"

namespace grace {

enum class Half { kFloat16, kBfloat16 };

// halves gets acc = x * multiplier + residual rounded to nearest, ties to even, one tensor after
// another; what is too large becomes infinite, and every NaN stays a NaN. kept gets acc minus what
// was sent. Returns whether every acc is finite.
bool CastList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
              Half type, uint16_t* halves);

// total = half * factor. Returns whether every total is finite.
bool UncastList(const Executor& executor, const std::vector<Target>& targets, Half type,
                const uint16_t* halves, float factor);

}  // namespace grace
