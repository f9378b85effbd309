#include "kernels/quantize/scales.h"

#include <algorithm>
#include <atomic>
#include <cmath>

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

double PairwiseSum(double* sums, int64_t count) {
  while (count > 1) {
    if (count % 2) sums[count++] = 0.0;
    count /= 2;
    for (int64_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

namespace {

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

bool ScalesList(const Executor& executor, std::vector<Scaled> list, Norm norm) {
  for (Scaled& own : list) own.block = std::min(own.block, std::max<int64_t>(own.n, 1));
  // The measures of blocks that do not fit into chunks, in parts counted from their own beginnings.
  std::vector<std::vector<Measure>> parts(list.size());
  const auto parts_of_block = [&](size_t i) { return CeilDiv(list[i].block, kChunk); };
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].block <= kChunk) continue;
    parts[i].resize(CeilDiv(list[i].n, list[i].block) * (parts_of_block(i) + 1));
  }
  const int64_t floats = norm == Norm::kMinMax ? 2 : 1;
  const auto cut = [&](size_t i, int64_t element) {
    const int64_t block = list[i].block, within = element % block;
    return element - within + std::min(block, CeilDiv(within, kChunk) * kChunk);
  };
  std::atomic<bool> finite{true};
  LoopOver(list).For(executor, cut, [&](size_t i, int64_t begin, int64_t end) {
    alignas(64) float room[kChunk];
    const Scaled& own = list[i];
    const bool large = own.block > kChunk;
    const int64_t most = large ? kChunk : kChunk / own.block * own.block;
    for (int64_t at = begin, n; at < end; at += n) {
      n = std::min({most, large ? own.block - at % own.block : most, end - at});
      const float* x = own.source.At(at, n, room);
      int64_t block = at / own.block;
      for (int64_t b = 0; b < n; b += own.block, ++block) {
        const Measure measure = MeasureOf(x + b, std::min(own.block, n - b), norm);
        if (!IsFinite(measure, norm)) finite.store(false, std::memory_order_relaxed);
        if (large) {
          parts[i][block * (parts_of_block(i) + 1) + at % own.block / kChunk] = measure;
        } else {
          PutScale(measure, norm, own.scales + floats * block);
        }
      }
    }
  });
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t count = parts_of_block(i), blocks = parts[i].size() / (count + 1);
    for (int64_t b = 0; b < blocks; ++b) {
      const Measure whole = Joined(parts[i].data() + b * (count + 1), count, norm);
      PutScale(whole, norm, list[i].scales + floats * b);
    }
  }
  return finite;
}

}  // namespace grace
