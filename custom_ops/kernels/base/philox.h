// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), addressed by element.
//
// Word i of a stream is word i % 4 of the block of counter (i / 4 low, i / 4 high, step,
// variable_draw) under the key (seed, worker).
#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"

namespace grace {

struct PhiloxKey {
  uint32_t seed;
  uint32_t worker;
  uint32_t step;
  uint32_t variable_draw;  // variable << 8 | draw
};

void RandomWords(const Executor& executor, const PhiloxKey& key, int64_t n, uint32_t* words);

// (word >> 8) * 2^-24, in [0, 1).
void Uniform(const Executor& executor, const PhiloxKey& key, int64_t n, float* out);

}  // namespace grace
