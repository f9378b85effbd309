// Sums of elements with random signs, from which norms and distances are estimated.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"

namespace grace {

// Element i of all tensors, end to end, belongs to sum i % count, with a minus where bit
// 31 - i % 32 of word i / 32 of the key's stream is set. Elements are added in their order.
// Returns the sum of all squares.
double SignedSums(const Executor& executor, const std::vector<Floats>& xs, const PhiloxKey& key,
                  int64_t count, float* sums);
// Copies the elements end to end. Returns the sum of all squares.
double EndToEnd(const Executor& executor, const std::vector<Floats>& xs, float* out);

}  // namespace grace
