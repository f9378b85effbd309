// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), addressed by element.
//
// Word i of a stream is word i % 4 of the block of counter (i / 4 low, i / 4 high, step,
// variable_draw) under the key (seed, worker).
//
// Where 16 bits are enough, a word serves two elements of a group of 32: element i has the lower
// half of word 16 * (i / 32) + i % 16 where i % 32 < 16, and the upper half of it elsewhere, so
// that 16 words make two vectors of 16 elements, or four of 8, without a shuffle. Such a half
// stands for the word h << 16 | 0x8000, a "coarse word": of the numbers that have these upper bits,
// the middle.
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
