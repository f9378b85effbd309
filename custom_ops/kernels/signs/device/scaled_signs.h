// A tensor whose signs have levels, and what sums become.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"
#include "kernels/signs/device/cells.h"
#include "kernels/signs/scaled_signs.h"

namespace grace {

struct ScaledItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* words;
  float *low, *high;  // low: null with one side
  DeviceCells cells;
  int64_t n;
  int64_t first;        // of pieces of the first pass: chunks, or patches of columns
  int64_t first_unit;   // of what a block joins
  int64_t first_chunk;  // of the chunks of the second pass
  int64_t sums;         // where its sums begin

  __device__ bool ByColumn() const { return cells.columns > 1; }
  // Whether chunks hold whole cells.
  __device__ bool Small() const { return !ByColumn() && int64_t{1} << cells.log <= kChunk; }
};

constexpr int32_t kChunkLog = 11;
static_assert(1 << kChunkLog == kChunk);

// Sums of chunks; with one side only `high` is used.
struct SumRooms {
  double *low, *high;
  int64_t* lows;
};

__device__ inline double Magnitude(float x) {
  const uint32_t bits = __float_as_uint(x) & kMagnitude;
  return static_cast<double>(__uint_as_float(bits < kSmallestNormal ? 0u : bits));
}

// x where its sign's bit is `up` and it is not denormal, else 0.
__device__ inline double OfSide(float x, bool up) {
  const bool counts =
      NotNegativeBits(x) == up && (__float_as_uint(x) & kMagnitude) >= kSmallestNormal;
  return static_cast<double>(counts ? x : 0.0f);
}

__device__ inline float LevelOf(double mean) {
  return fabs(mean) < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(mean);
}

struct Levels {
  float low, high;

  __device__ float Without(float acc) const { return SubZ(acc, NotNegativeBits(acc) ? high : low); }
};

// Writes the levels of a cell of n elements, whose sums these are.
__device__ inline Levels SetLevels(const ScaledItem& own, int64_t cell, double low, double high,
                                   int64_t lows, int64_t n) {
  Levels levels;
  if (own.low) {
    const int64_t highs = n - lows;
    levels.low = LevelOf(low / static_cast<double>(lows > 1 ? lows : 1));
    levels.high = LevelOf(high / static_cast<double>(highs > 1 ? highs : 1));
    own.low[cell] = levels.low;
  } else {
    levels.high = LevelOf(high * (1.0 / static_cast<double>(n)));
    levels.low = 0.0f - levels.high;
  }
  own.high[cell] = levels.high;
  return levels;
}

}  // namespace grace
