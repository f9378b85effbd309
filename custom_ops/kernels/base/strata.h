// Uniform numbers of several workers that lie evenly apart.
#pragma once

#include <cstdint>

#include "kernels/base/philox.h"

namespace grace {

// What a worker adds to the random words that all draw alike: 2^32 * p / workers, rounded down,
// where p is the worker's place in a permutation that all draw alike too: the rank of the worker's
// word among the first `workers` words of the key's stream, of equal ones the first being least.
// Worker w counts as w modulo workers.
uint32_t StratumOf(const PhiloxKey& key, int64_t worker, int64_t workers);

}  // namespace grace
