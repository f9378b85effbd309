// One scale for each block of elements.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace grace {

enum class Norm { kMax, kL2 };

// scales[ceil(n / block)]: the largest |x| of each block, or the root of its sum of squares, summed
// in double over adjacent pairs, then pairs of pairs. Below 2^-110 a scale is 0. Needs block >= 1.
void BlockScales(const Executor& executor, const float* x, int64_t n, int64_t block, Norm norm,
                 float* scales);

// What tells the scale of some elements, in parts: the largest magnitude's bits, or the sum of
// squares.
struct Measure {
  uint32_t largest = 0;
  double sum = 0.0;
};

// Of at most kGrain elements, on the calling thread.
Measure MeasureOf(const float* x, int64_t n, Norm norm);

// Of consecutive parts of equal size, a power of two of at least 64 elements, but for the last.
// Spoils them, and needs room for one more.
Measure Joined(Measure* parts, int64_t count, Norm norm);

float ScaleOf(const Measure& measure, Norm norm);

// Whether all elements are.
bool IsFinite(const Measure& measure, Norm norm);

}  // namespace grace
