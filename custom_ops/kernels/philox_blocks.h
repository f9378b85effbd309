// Philox for a batch of 128 elements, per instruction set, to be inlined into other kernels.
//
// The vector versions keep each 32-bit word in the low half of a 64-bit lane, the half the widening
// multiply reads, so a round needs no blends and its low products need no instruction at all. The
// lanes' counters are ordered such that four shuffles at the end put the elements in order. A batch
// is several chains of rounds side by side, because one alone mostly waits for its multiplications.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "philox.h"

namespace grace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr int kPhiloxRounds = 10;
constexpr int kBatch = 128;
constexpr int kBatchBlocks = kBatch / 4;

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

// The words of the 32 blocks from `block` on, that is of elements 4 * block to 4 * block + 127.
inline void PhiloxBatch(const PhiloxSchedule& schedule, uint64_t block, uint32_t* words) {
  for (int j = 0; j < kBatchBlocks; ++j) {
    uint32_t a = static_cast<uint32_t>(block + j), b = static_cast<uint32_t>((block + j) >> 32);
    uint32_t c = schedule.step, d = schedule.variable_draw;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * a;
      const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c;
      a = static_cast<uint32_t>(p1 >> 32) ^ b ^ static_cast<uint32_t>(schedule.k0[round]);
      c = static_cast<uint32_t>(p0 >> 32) ^ d ^ static_cast<uint32_t>(schedule.k1[round]);
      b = static_cast<uint32_t>(p1);
      d = static_cast<uint32_t>(p0);
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

constexpr int kChains = 2;

static GRACE_INLINE void PhiloxChains(const PhiloxSchedule& schedule, uint64_t block,
                                      uint32_t* words) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxM0), m1 = _mm256_set1_epi64x(kPhiloxM1);
  __m256i a[kChains], b[kChains], c[kChains], d[kChains];
  for (int i = 0; i < kChains; ++i) {
    a[i] = _mm256_add_epi64(_mm256_set1_epi64x(block + 4 * i), _mm256_setr_epi64x(0, 2, 1, 3));
    b[i] = _mm256_srli_epi64(a[i], 32);
    c[i] = _mm256_set1_epi64x(schedule.step);
    d[i] = _mm256_set1_epi64x(schedule.variable_draw);
  }
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i k0 = _mm256_set1_epi64x(schedule.k0[round]);
    const __m256i k1 = _mm256_set1_epi64x(schedule.k1[round]);
    for (int i = 0; i < kChains; ++i) {
      const __m256i p0 = _mm256_mul_epu32(a[i], m0), p1 = _mm256_mul_epu32(c[i], m1);
      a[i] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(b[i], k0));
      c[i] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(d[i], k1));
      b[i] = p1;
      d[i] = p0;
    }
  }
  for (int i = 0; i < kChains; ++i) {
    const __m256i ab = _mm256_blend_epi32(a[i], _mm256_slli_epi64(b[i], 32), 0xAA);
    const __m256i cd = _mm256_blend_epi32(c[i], _mm256_slli_epi64(d[i], 32), 0xAA);
    __m256i* out = reinterpret_cast<__m256i*>(words + 16 * i);
    _mm256_storeu_si256(out, _mm256_unpacklo_epi64(ab, cd));
    _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi64(ab, cd));
  }
}

// As generic::PhiloxBatch.
static GRACE_INLINE void PhiloxBatch(const PhiloxSchedule& schedule, uint64_t block,
                                     uint32_t* words) {
  for (int j = 0; j < kBatchBlocks; j += 4 * kChains) {
    PhiloxChains(schedule, block + j, words + 4 * j);
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

constexpr int kChains = 4;
static_assert(8 * kChains == kBatchBlocks);

// As generic::PhiloxBatch.
static GRACE_INLINE void PhiloxBatch(const PhiloxSchedule& schedule, uint64_t block,
                                     uint32_t* words) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxM0), m1 = _mm512_set1_epi64(kPhiloxM1);
  __m512i a[kChains], b[kChains], c[kChains], d[kChains];
#pragma GCC unroll 4
  for (int i = 0; i < kChains; ++i) {
    a[i] = _mm512_add_epi64(_mm512_set1_epi64(block + 8 * i),
                            _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
    b[i] = _mm512_srli_epi64(a[i], 32);
    c[i] = _mm512_set1_epi64(schedule.step);
    d[i] = _mm512_set1_epi64(schedule.variable_draw);
  }
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m512i k0 = _mm512_set1_epi64(schedule.k0[round]);
    const __m512i k1 = _mm512_set1_epi64(schedule.k1[round]);
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      const __m512i p0 = _mm512_mul_epu32(a[i], m0), p1 = _mm512_mul_epu32(c[i], m1);
      a[i] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), b[i], k0, 0x96);
      c[i] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), d[i], k1, 0x96);
      b[i] = p1;
      d[i] = p0;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kChains; ++i) {
    // The even words of the one beside the even words of the other.
    const auto even = static_cast<_MM_PERM_ENUM>(0xA0);
    const __m512i ab = _mm512_mask_shuffle_epi32(a[i], 0xAAAA, b[i], even);
    const __m512i cd = _mm512_mask_shuffle_epi32(c[i], 0xAAAA, d[i], even);
    _mm512_storeu_si512(words + 32 * i, _mm512_unpacklo_epi64(ab, cd));
    _mm512_storeu_si512(words + 32 * i + 16, _mm512_unpackhi_epi64(ab, cd));
  }
}

}  // namespace avx512
GRACE_END
#endif

}  // namespace grace
