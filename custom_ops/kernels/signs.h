// One bit an element: its sign.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace grace {

// words[PackedWords(n, 1)]: bit 1 where x >= 0 (zero of either sign: 1, NaN: 0).
void PackSigns(const Executor& executor, const float* x, int64_t n, uint32_t* words);

// +1 where the bit is 1, -1 elsewhere.
void UnpackSigns(const Executor& executor, const uint32_t* words, int64_t n, float* out);

// The sign of the sum of the workers' signs, 0 for a tie. words is [workers][PackedWords(n, 1)].
void VoteSigns(const Executor& executor, const uint32_t* words, int64_t workers, int64_t n,
               float* out);

}  // namespace grace
