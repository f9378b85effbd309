#include "scales.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "words.h"

namespace grace {

// The compiler vectorises this loop by itself; it has to be seen once per instruction set.
#define GRACE_MAX_LOOP(x, n)                                             \
  int32_t largest = 0;                                                   \
  for (int64_t i = 0; i < (n); ++i) {                                    \
    const int32_t bits = static_cast<int32_t>(BitsOf((x)[i]) & kMagnitude); \
    largest = bits > largest ? bits : largest;                           \
  }                                                                      \
  return static_cast<uint32_t>(largest)

// Elements whose squares the functions below sum at once.
constexpr int64_t kLeaf = 64;

namespace generic {

// The bits of the largest |x|; as integers NaN is above infinity.
static uint32_t Largest(const float* x, int64_t n) { GRACE_MAX_LOOP(x, n); }

// sums[i]: the pairwise sum of the squares of the i-th 64 elements.
static void SumLeaves(const float* x, int64_t leaves, double* sums) {
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    double s[kLeaf];
    for (int i = 0; i < kLeaf; ++i) {
      const double v = Flush(x[kLeaf * leaf + i]);
      s[i] = v * v;
    }
    for (int width = kLeaf / 2; width >= 1; width /= 2) {
      for (int i = 0; i < width; ++i) s[i] = s[2 * i] + s[2 * i + 1];
    }
    sums[leaf] = s[0];
  }
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

static uint32_t Largest(const float* x, int64_t n) { GRACE_MAX_LOOP(x, n); }

static inline __m256d Square(__m128 v) {
  const __m128i magnitude = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(kMagnitude));
  const __m128i normal = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(kSmallestNormal - 1));
  const __m256d wide = _mm256_cvtps_pd(_mm_and_ps(v, _mm_castsi128_ps(normal)));
  return _mm256_mul_pd(wide, wide);
}

// Lane i of the result is the pairwise sum of the lanes of v[i].
static inline __m256d SumEach(const __m256d* v) {
  const __m256d p = _mm256_hadd_pd(v[0], v[1]), q = _mm256_hadd_pd(v[2], v[3]);
  return _mm256_add_pd(_mm256_permute2f128_pd(p, q, 0x20), _mm256_permute2f128_pd(p, q, 0x31));
}

static void SumLeaves(const float* x, int64_t leaves, double* sums) {
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    __m256d quarters[4];
    for (int q = 0; q < 4; ++q) {
      __m256d v[4];
      for (int i = 0; i < 4; ++i) v[i] = Square(_mm_loadu_ps(x + kLeaf * leaf + 16 * q + 4 * i));
      quarters[q] = SumEach(v);
    }
    double s[4];
    _mm256_storeu_pd(s, SumEach(quarters));
    sums[leaf] = (s[0] + s[1]) + (s[2] + s[3]);
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

static uint32_t Largest(const float* x, int64_t n) { GRACE_MAX_LOOP(x, n); }

static inline __m512d Square(__m256 v) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(kMagnitude));
  const __mmask8 normal = _mm256_cmpge_epu32_mask(magnitude, _mm256_set1_epi32(kSmallestNormal));
  const __m512d wide = _mm512_cvtps_pd(_mm256_maskz_mov_ps(normal, v));
  return _mm512_mul_pd(wide, wide);
}

static inline __m512d AddHalves(__m512d a, __m512d b) {
  return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
}

// Lane i of the result is the pairwise sum of the lanes of v[i].
static inline __m512d SumEach(const __m512d* v) {
  __m512d pairs[4];
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm512_add_pd(_mm512_unpacklo_pd(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_pd(v[2 * i], v[2 * i + 1]));
  }
  return AddHalves(AddHalves(pairs[0], pairs[1]), AddHalves(pairs[2], pairs[3]));
}

static void SumLeaves(const float* x, int64_t leaves, double* sums) {
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    __m512d v[8];
    for (int i = 0; i < 8; ++i) v[i] = Square(_mm256_loadu_ps(x + kLeaf * leaf + 8 * i));
    double s[8];
    _mm512_storeu_pd(s, SumEach(v));
    sums[leaf] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}

}  // namespace avx512
GRACE_END
#endif

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
double SumSquares(decltype(&generic::SumLeaves) sum_leaves, const float* x, int64_t n) {
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
