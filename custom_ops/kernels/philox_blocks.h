// Philox for one group of 32 elements, per instruction set, to be inlined into other kernels.
//
// The vector versions keep each 32-bit word in the low half of a 64-bit lane, the half the widening
// multiply reads, so a round needs no blends and its low products need no instruction at all. The
// lanes' counters are ordered such that four shuffles at the end put the elements in order.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "philox.h"

namespace grace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr int kPhiloxRounds = 10;

// The round keys of a stream, and the counter words that stay the same over it.
struct PhiloxSchedule {
  explicit PhiloxSchedule(const PhiloxKey& key) : step(key.step), variable_draw(key.variable_draw) {
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      k0[round] = static_cast<uint32_t>(key.seed + round * 0x9E3779B9u);
      k1[round] = static_cast<uint32_t>(key.worker + round * 0xBB67AE85u);
    }
  }
  uint64_t k0[kPhiloxRounds];
  uint64_t k1[kPhiloxRounds];
  uint32_t step;
  uint32_t variable_draw;
};

namespace generic {

// The words of elements 32 * group to 32 * group + 31.
inline void PhiloxGroup(const PhiloxSchedule& schedule, uint64_t group, uint32_t* words) {
  for (int j = 0; j < 8; ++j) {
    const uint64_t index = 8 * group + j;
    uint32_t a = static_cast<uint32_t>(index), b = static_cast<uint32_t>(index >> 32);
    uint32_t c = schedule.step, d = schedule.variable_draw;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t m0 = static_cast<uint64_t>(kPhiloxM0) * a;
      const uint64_t m1 = static_cast<uint64_t>(kPhiloxM1) * c;
      a = static_cast<uint32_t>(m1 >> 32) ^ b ^ static_cast<uint32_t>(schedule.k0[round]);
      c = static_cast<uint32_t>(m0 >> 32) ^ d ^ static_cast<uint32_t>(schedule.k1[round]);
      b = static_cast<uint32_t>(m1);
      d = static_cast<uint32_t>(m0);
    }
    words[4 * j] = a;
    words[4 * j + 1] = b;
    words[4 * j + 2] = c;
    words[4 * j + 3] = d;
  }
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

inline void PhiloxHalf(const PhiloxSchedule& schedule, uint64_t block, __m256i* out) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxM0), m1 = _mm256_set1_epi64x(kPhiloxM1);
  __m256i a = _mm256_add_epi64(_mm256_set1_epi64x(block), _mm256_setr_epi64x(0, 2, 1, 3));
  __m256i b = _mm256_srli_epi64(a, 32);
  __m256i c = _mm256_set1_epi64x(schedule.step), d = _mm256_set1_epi64x(schedule.variable_draw);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i p0 = _mm256_mul_epu32(a, m0), p1 = _mm256_mul_epu32(c, m1);
    a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), b),
                         _mm256_set1_epi64x(schedule.k0[round]));
    c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), d),
                         _mm256_set1_epi64x(schedule.k1[round]));
    b = p1;
    d = p0;
  }
  const __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
  const __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xAA);
  out[0] = _mm256_unpacklo_epi64(ab, cd);
  out[1] = _mm256_unpackhi_epi64(ab, cd);
}

// As generic::PhiloxGroup, into four vectors of eight words.
inline void PhiloxGroup(const PhiloxSchedule& schedule, uint64_t group, __m256i* words) {
  PhiloxHalf(schedule, 8 * group, words);
  PhiloxHalf(schedule, 8 * group + 4, words + 2);
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

// As generic::PhiloxGroup, into two vectors of sixteen words.
inline void PhiloxGroup(const PhiloxSchedule& schedule, uint64_t group, __m512i* words) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxM0), m1 = _mm512_set1_epi64(kPhiloxM1);
  __m512i a = _mm512_add_epi64(_mm512_set1_epi64(8 * group),
                               _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  __m512i b = _mm512_srli_epi64(a, 32);
  __m512i c = _mm512_set1_epi64(schedule.step), d = _mm512_set1_epi64(schedule.variable_draw);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m512i p0 = _mm512_mul_epu32(a, m0), p1 = _mm512_mul_epu32(c, m1);
    a = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), b,
                                  _mm512_set1_epi64(schedule.k0[round]), 0x96);
    c = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), d,
                                  _mm512_set1_epi64(schedule.k1[round]), 0x96);
    b = p1;
    d = p0;
  }
  const __m512i ab = _mm512_mask_shuffle_epi32(a, 0xAAAA, b, static_cast<_MM_PERM_ENUM>(0xA0));
  const __m512i cd = _mm512_mask_shuffle_epi32(c, 0xAAAA, d, static_cast<_MM_PERM_ENUM>(0xA0));
  words[0] = _mm512_unpacklo_epi64(ab, cd);
  words[1] = _mm512_unpackhi_epi64(ab, cd);
}

}  // namespace avx512
GRACE_END
#endif

}  // namespace grace
