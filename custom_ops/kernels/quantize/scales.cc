#include "kernels/quantize/scales.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/words.h"

namespace grace {

// Elements whose squares the kernels sum at once.
constexpr int kLeaf = 64;

template <int kCount>
inline double SumAdjacent(const double* s) {
  if constexpr (kCount == 1) {
    return *s;
  } else {
    return SumAdjacent<kCount / 2>(s) + SumAdjacent<kCount / 2>(s + kCount / 2);
  }
}

}  // namespace grace

#define GRACE_KERNEL "kernels/quantize/scales-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// Sums adjacent pairs until one is left; sums has room for one more than count.
double PairwiseSum(double* sums, int64_t count) {
  while (count > 1) {
    if (count % 2) sums[count++] = 0.0;
    count /= 2;
    for (int64_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

// The pairwise sum of squares of at most kGrain elements.
double SumSquares(const float* x, int64_t n) {
  const auto sum_leaves = GRACE_CHOOSE(SumLeaves);
  double sums[kGrain / kLeaf + 1];
  const int64_t whole = n / kLeaf, rest = n % kLeaf;
  sum_leaves(x, whole, sums);
  if (rest) {
    float last[kLeaf] = {};
    std::copy(x + kLeaf * whole, x + n, last);
    sum_leaves(last, 1, sums + whole);
  }
  return PairwiseSum(sums, CeilDiv(n, kLeaf));
}

}  // namespace

Measure MeasureOf(const float* x, int64_t n, Norm norm) {
  Measure measure;
  if (norm == Norm::kMax) {
    measure.largest = GRACE_CHOOSE(Largest)(x, n);
  } else if (norm == Norm::kMinMax) {
    GRACE_CHOOSE(Extremes)(x, n, &measure.lowest, &measure.highest);
  } else {
    measure.sum = SumSquares(x, n);
  }
  return measure;
}

Measure Joined(Measure* parts, int64_t count, Norm norm) {
  if (norm == Norm::kMax) {
    for (int64_t i = 1; i < count; ++i) {
      parts[0].largest = std::max(parts[0].largest, parts[i].largest);
    }
    return parts[0];
  }
  if (norm == Norm::kMinMax) {
    for (int64_t i = 1; i < count; ++i) {
      parts[0].lowest = std::min(parts[0].lowest, parts[i].lowest);
      parts[0].highest = std::max(parts[0].highest, parts[i].highest);
    }
    return parts[0];
  }
  while (count > 1) {
    if (count % 2) parts[count++] = Measure();
    count /= 2;
    for (int64_t i = 0; i < count; ++i) parts[i].sum = parts[2 * i].sum + parts[2 * i + 1].sum;
  }
  return parts[0];
}

float ScaleOf(const Measure& measure, Norm norm) {
  if (norm == Norm::kMax) {
    return FloatOf(measure.largest < BitsOf(kSmallestScale) ? 0u : measure.largest);
  }
  const double scale = std::sqrt(measure.sum);
  return scale < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(scale);
}

namespace {

// The float whose place in the order this is.
float FloatAt(int32_t place) {
  const auto bits = static_cast<uint32_t>(place);
  return Flush(FloatOf(place < 0 ? bits ^ kMagnitude : bits));
}

}  // namespace

void PutScale(const Measure& measure, Norm norm, float* scale) {
  if (norm != Norm::kMinMax) {
    *scale = ScaleOf(measure, norm);
    return;
  }
  const float low = FloatAt(measure.lowest), high = FloatAt(measure.highest);
  // Halved first: the distance may be more than the largest float.
  const float half = Flush(0.5f * high) - Flush(0.5f * low);
  scale[0] = half < kSmallestScale ? 0.0f : half;
  scale[1] = low;
}

bool IsFinite(const Measure& measure, Norm norm) {
  if (norm == Norm::kMinMax) {
    const auto infinity = static_cast<int32_t>(kInfinity);
    return measure.highest < infinity && measure.lowest > -infinity - 1;
  }
  // The sum of squares of floats cannot overflow a double.
  return norm == Norm::kMax ? measure.largest < kInfinity : std::isfinite(measure.sum);
}

void BlockScales(const Executor& executor, const float* x, int64_t n, int64_t block, Norm norm,
                 float* scales) {
  if (n == 0) return;
  block = std::min(block, n);
  const int64_t blocks = CeilDiv(n, block);
  if (block <= kGrain) {
    executor.For(blocks, std::max<int64_t>(1, kGrain / block), [=](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t count = std::min(block, n - b * block);
        scales[b] = ScaleOf(MeasureOf(x + b * block, count, norm), norm);
      }
    });
    return;
  }
  // A piece is kGrain elements, a power of two of them, so that it is a whole subtree of the sum.
  const int64_t pieces = CeilDiv(block, kGrain);
  std::vector<Measure> parts(blocks * (pieces + 1));
  executor.For(blocks * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / pieces, p = i % pieces, from = b * block + p * kGrain;
      const int64_t count = std::min({kGrain, block - p * kGrain, n - from});
      if (count > 0) parts[b * (pieces + 1) + p] = MeasureOf(x + from, count, norm);
    }
  });
  for (int64_t b = 0; b < blocks; ++b) {
    scales[b] = ScaleOf(Joined(parts.data() + b * (pieces + 1), pieces, norm), norm);
  }
}

}  // namespace grace
