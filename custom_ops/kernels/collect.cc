#include "collect.h"

#include "dispatch.h"
#include "words.h"

namespace grace {
namespace generic {

static int64_t Pick(const float* x, int64_t first, int64_t total, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  int64_t count = 0;
  for (int64_t i = 0; i < total; ++i) {
    const uint32_t own = BitsOf(x[i]);
    indices[count] = static_cast<int32_t>(first + i);
    bits[count] = own;
    count += (own & kMagnitude) >= least;
  }
  return count;
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

// The lanes set in each mask, first to last, then zeros.
struct LaneTable {
  alignas(32) int32_t lanes[256][8] = {};
  constexpr LaneTable() {
    for (int mask = 0; mask < 256; ++mask) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) lanes[mask][count++] = lane;
      }
    }
  }
};
static constexpr LaneTable kLanes;

static int64_t Pick(const float* x, int64_t first, int64_t total, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  const __m256i below = _mm256_set1_epi32(static_cast<int32_t>(least) - 1);
  const __m256i magnitude = _mm256_set1_epi32(kMagnitude), eight = _mm256_set1_epi32(8);
  __m256i at = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  int64_t count = 0, i = 0;
  for (; i + 8 <= total; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i reaches = _mm256_cmpgt_epi32(_mm256_and_si256(v, magnitude), below);
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(reaches));
    if (mask) {
      const __m256i lanes =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes.lanes[mask]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + count),
                          _mm256_permutevar8x32_epi32(at, lanes));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits + count),
                          _mm256_permutevar8x32_epi32(v, lanes));
      count += __builtin_popcount(mask);
    }
    at = _mm256_add_epi32(at, eight);
  }
  return count + generic::Pick(x + i, first + i, total - i, least, indices + count,
                               bits + count);
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

static int64_t Pick(const float* x, int64_t first, int64_t total, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  const __m512i low = _mm512_set1_epi32(static_cast<int32_t>(least));
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude), sixteen = _mm512_set1_epi32(16);
  __m512i at = _mm512_add_epi32(
      _mm512_set1_epi32(static_cast<int32_t>(first)),
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  int64_t count = 0, i = 0;
  // Compressing into a register and storing all of it beats the store that compresses.
#pragma GCC unroll 4
  for (; i + 16 <= total; i += 16) {
    const __m512i v = _mm512_loadu_si512(x + i);
    const __mmask16 reaches = _mm512_cmpge_epi32_mask(_mm512_and_si512(v, magnitude), low);
    _mm512_storeu_si512(indices + count, _mm512_maskz_compress_epi32(reaches, at));
    _mm512_storeu_si512(bits + count, _mm512_maskz_compress_epi32(reaches, v));
    count += __builtin_popcount(reaches);
    at = _mm512_add_epi32(at, sixteen);
  }
  return count + generic::Pick(x + i, first + i, total - i, least, indices + count,
                               bits + count);
}

}  // namespace avx512
GRACE_END
#endif

Collect ChooseCollect() { return GRACE_CHOOSE(Pick); }

}  // namespace grace
