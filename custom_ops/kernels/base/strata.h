// Stratified random numbers: those of the workers are evenly spaced.
#pragma once

#include <cstdint>

#include "kernels/base/philox.h"

namespace grace {

// The number that a worker adds to the random words common to all workers: 2^32 * p / workers,
// rounded down. p is the worker's place in a permutation common to all: the rank of its word among
// the first `workers` words of the key's stream, where of equal words the first is the least.
// Worker w counts as w modulo workers.
uint32_t StratumOf(const PhiloxKey& key, int64_t worker, int64_t workers);

}  // namespace grace
