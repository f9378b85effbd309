// Sums of elements with random signs, from which norms and distances are estimated.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"

namespace grace {

// Counts the elements of all tensors one after another. Element i is added to sum i % count. It is
// subtracted instead where bit 31 - i % 32 of word i / 32 of the key's stream is set. Each sum
// takes its elements in ascending order of i. Returns the sum of the squares of all elements.
double SignedSums(const Executor& executor, const std::vector<Floats>& xs, const PhiloxKey& key,
                  int64_t count, float* sums);
// Copies the elements of all tensors to `out`, in the order of the tensors. Returns the sum of the
// squares of all elements.
double EndToEnd(const Executor& executor, const std::vector<Floats>& xs, float* out);

}  // namespace grace
