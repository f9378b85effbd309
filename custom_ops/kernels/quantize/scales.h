// One scale for each block of elements.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"

namespace grace {

enum class Norm { kMax, kL2, kMinMax };

// One tensor of a list whose blocks' scales are wanted.
struct Scaled {
  Accumulated source;
  int64_t n, block;
  float* scales;  // [ceil(n / block)], or twice that for kMinMax
};

// The scales: the largest |x| of each block, or the root of its sum of squares, summed in double
// over adjacent pairs, then pairs of pairs; below 2^-110 a scale is 0. For kMinMax see PutScale.
// Needs block >= 1. Returns whether all sources are finite.
bool ScalesList(const Executor& executor, std::vector<Scaled> list, Norm norm);

// Those of one tensor.
inline void BlockScales(const Executor& executor, const float* x, int64_t n, int64_t block,
                        Norm norm, float* scales) {
  ScalesList(executor, {{{x, nullptr, 1.0f}, n, block, scales}}, norm);
}

// Adds adjacent pairs until one is left; `sums` has room for one more than count.
double PairwiseSum(double* sums, int64_t count);

// The measure of a part of a block, from which scales follow: the bits of the largest magnitude,
// the sum of squares, or the minimum and the maximum, as integers in the order of the floats, with
// NaN above infinity.
struct Measure {
  uint32_t largest = 0;
  double sum = 0.0;
  int32_t lowest = INT32_MAX, highest = INT32_MIN;
};

// Of at most kGrain elements, on the calling thread.
Measure MeasureOf(const float* x, int64_t n, Norm norm);

// Of consecutive parts of equal size, a power of two of at least 64 elements, but for the last.
// Spoils them, and needs room for one more.
Measure Joined(Measure* parts, int64_t count, Norm norm);

float ScaleOf(const Measure& measure, Norm norm);

// The scale as it is sent: one float, or for kMinMax half the distance from the minimum to the
// maximum, 0 below 2^-110, and the minimum, denormals being 0.
void PutScale(const Measure& measure, Norm norm, float* scale);

// Whether all elements are.
bool IsFinite(const Measure& measure, Norm norm);

}  // namespace grace
