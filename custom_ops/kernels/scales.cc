#include "scales.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "words.h"

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

#define GRACE_KERNEL "each/scales.h"
#include "each_isa.h"

namespace grace {
namespace {

using SumLeavesFunction = decltype(&generic::SumLeaves);

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
double SumSquares(SumLeavesFunction sum_leaves, const float* x, int64_t n) {
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

float MaxScale(uint32_t bits) { return FloatOf(bits < BitsOf(kSmallestScale) ? 0u : bits); }

float L2Scale(double sum) {
  const double scale = std::sqrt(sum);
  return scale < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(scale);
}

}  // namespace

void BlockScales(const Executor& executor, const float* x, int64_t n, int64_t block, Norm norm,
                 float* scales) {
  const auto largest = GRACE_CHOOSE(Largest);
  const auto sum_leaves = GRACE_CHOOSE(SumLeaves);
  block = std::min(block, n);
  const int64_t blocks = CeilDiv(n, block);
  if (block <= kGrain) {
    executor.For(blocks, std::max<int64_t>(1, kGrain / block), [=](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float* own = x + b * block;
        const int64_t count = std::min(block, n - b * block);
        scales[b] = norm == Norm::kMax ? MaxScale(largest(own, count))
                                       : L2Scale(SumSquares(sum_leaves, own, count));
      }
    });
    return;
  }
  // A piece is kGrain elements, a power of two of them, so that it is a whole subtree of the sum.
  const int64_t pieces = CeilDiv(block, kGrain);
  std::vector<uint32_t> maxima(norm == Norm::kMax ? blocks * pieces : 0);
  std::vector<double> sums(norm == Norm::kL2 ? blocks * (pieces + 1) : 0);
  executor.For(blocks * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / pieces, p = i % pieces, from = b * block + p * kGrain;
      const int64_t count = std::min({kGrain, block - p * kGrain, n - from});
      if (count <= 0) continue;
      if (norm == Norm::kMax) {
        maxima[i] = largest(x + from, count);
      } else {
        sums[b * (pieces + 1) + p] = SumSquares(sum_leaves, x + from, count);
      }
    }
  });
  for (int64_t b = 0; b < blocks; ++b) {
    if (norm == Norm::kMax) {
      const auto own = maxima.begin() + b * pieces;
      scales[b] = MaxScale(*std::max_element(own, own + pieces));
    } else {
      scales[b] = L2Scale(PairwiseSum(sums.data() + b * (pieces + 1), pieces));
    }
  }
}

}  // namespace grace
