// Eight lanes of AVX2.
#pragma once

GRACE_BEGIN_AVX2
namespace grace {
namespace avx2 {

using F = __m256;
using U = __m256i;
using M = __m256i;  // all ones or zero in each lane
using B = __m256i;
using H = __m128i;
using D = __m256d;
using W = __m256i;

constexpr int kLanes = 8, kDoubles = 4, kFan = 4, kWides = 4, kChains = 3;

GRACE_INLINE F Load(const float* x) { return _mm256_loadu_ps(x); }
GRACE_INLINE U LoadU(const uint32_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
GRACE_INLINE void Store(float* out, F v) { _mm256_storeu_ps(out, v); }
GRACE_INLINE void StoreU(uint32_t* out, U v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v);
}
GRACE_INLINE H LoadH(const uint16_t* x) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
}
GRACE_INLINE void StoreH(uint16_t* out, H v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), v);
}
GRACE_INLINE void Stream(const char* from, char* to) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* target = reinterpret_cast<__m256i*>(to);
  _mm256_stream_si256(target, _mm256_loadu_si256(source));
  _mm256_stream_si256(target + 1, _mm256_loadu_si256(source + 1));
}
GRACE_INLINE void EndStreams() { _mm_sfence(); }
GRACE_INLINE void StorePast(float* out, F v) { _mm256_stream_ps(out, v); }
GRACE_INLINE F Set(float x) { return _mm256_set1_ps(x); }
GRACE_INLINE U SetU(uint32_t x) { return _mm256_set1_epi32(static_cast<int32_t>(x)); }
GRACE_INLINE U Lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
GRACE_INLINE U AsU(F v) { return _mm256_castps_si256(v); }
GRACE_INLINE F AsF(U v) { return _mm256_castsi256_ps(v); }

GRACE_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
GRACE_INLINE F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
GRACE_INLINE F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
GRACE_INLINE float SumOf(F v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}
GRACE_INLINE F Min(F a, F b) { return _mm256_min_ps(a, b); }
GRACE_INLINE U Add(U a, U b) { return _mm256_add_epi32(a, b); }
GRACE_INLINE U Sub(U a, U b) { return _mm256_sub_epi32(a, b); }
GRACE_INLINE U Add16(U a, U b) { return _mm256_add_epi16(a, b); }
GRACE_INLINE U MinInt(U a, U b) { return _mm256_min_epi32(a, b); }
GRACE_INLINE U MaxInt(U a, U b) { return _mm256_max_epi32(a, b); }
GRACE_INLINE uint32_t MaxOf(U v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}
GRACE_INLINE U And(U a, U b) { return _mm256_and_si256(a, b); }
GRACE_INLINE U Or(U a, U b) { return _mm256_or_si256(a, b); }
GRACE_INLINE U Xor(U a, U b) { return _mm256_xor_si256(a, b); }
GRACE_INLINE M Not(M m) { return Xor(m, SetU(0xffffffffu)); }
template <int n>
GRACE_INLINE U ShiftLeft(U v) {
  return _mm256_slli_epi32(v, n);
}
template <int n>
GRACE_INLINE U ShiftRight(U v) {
  return _mm256_srli_epi32(v, n);
}
GRACE_INLINE U ShiftLeft(U v, int n) { return _mm256_sll_epi32(v, _mm_cvtsi32_si128(n)); }
GRACE_INLINE U ShiftRight(U v, int n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128(n)); }
GRACE_INLINE U SignBits(U v) { return _mm256_srai_epi32(v, 31); }

GRACE_INLINE M Greater(U a, U b) { return _mm256_cmpgt_epi32(a, b); }
GRACE_INLINE M Equal(U a, U b) { return _mm256_cmpeq_epi32(a, b); }
GRACE_INLINE M AtMost(U a, U b) { return Equal(_mm256_min_epu32(a, b), a); }
GRACE_INLINE M Normal(U v) { return Greater(And(v, SetU(kMagnitude)), SetU(kSmallestNormal - 1)); }
GRACE_INLINE U Blend(M m, U a, U b) { return _mm256_blendv_epi8(b, a, m); }
GRACE_INLINE F Blend(M m, F a, F b) { return _mm256_blendv_ps(b, a, AsF(m)); }
GRACE_INLINE F Keep(M m, F v) { return _mm256_and_ps(AsF(m), v); }
GRACE_INLINE uint32_t Bits(M m) { return static_cast<uint32_t>(_mm256_movemask_ps(AsF(m))); }
GRACE_INLINE M MaskOf(uint32_t bits) {
  const U own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return Equal(And(SetU(bits), own), own);
}
GRACE_INLINE M Negative(F v) {
  return _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ));
}
// The sum with the lane n further on, or the difference from the lane n before.
template <int n>
GRACE_INLINE F Butterfly(F v) {
  const F other = n == 4   ? _mm256_permute2f128_ps(v, v, 1)
                  : n == 2 ? _mm256_permute_ps(v, 0x4E)
                           : _mm256_permute_ps(v, 0xB1);
  const U upper = _mm256_setr_epi32(0, n == 1, n == 2, n < 4, n == 4, n != 2, n != 1, 1);
  return Add(other, AsF(Xor(AsU(v), _mm256_slli_epi32(upper, 31))));
}
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
inline constexpr LaneTable kLaneTable;
GRACE_INLINE U Compress(M m, U v) {
  const int32_t* lanes = kLaneTable.lanes[Bits(m)];
  return _mm256_permutevar8x32_epi32(v, _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes)));
}

// Of each lane of each mask how many lanes before it are set.
struct RankTable {
  alignas(32) int32_t ranks[256][8] = {};
  constexpr RankTable() {
    for (int mask = 0; mask < 256; ++mask) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        ranks[mask][lane] = count;
        count += mask >> lane & 1;
      }
    }
  }
};
inline constexpr RankTable kRankTable;
GRACE_INLINE U Spread(M m, U v) {
  const int32_t* ranks = kRankTable.ranks[Bits(m)];
  return _mm256_permutevar8x32_epi32(v, _mm256_load_si256(reinterpret_cast<const __m256i*>(ranks)));
}
GRACE_INLINE F Lookup(const float* table, U u) {
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), u);
}
GRACE_INLINE F LookupOf16(const float* table, U u) {
  const F upper = _mm256_castsi256_ps(_mm256_slli_epi32(u, 28));  // bit 3 as the sign
  return _mm256_blendv_ps(Lookup(table, u), Lookup(table + 8, u), upper);
}

GRACE_INLINE F FromInt(U v) { return _mm256_cvtepi32_ps(v); }
GRACE_INLINE U ToInt(F v) { return _mm256_cvttps_epi32(v); }
GRACE_INLINE F Rint(F v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

GRACE_INLINE H Narrow(U v) {
  return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
GRACE_INLINE U Widen(H h) { return _mm256_cvtepu16_epi32(h); }
// AVX2 alone does not promise the processor's own conversions.
#include "kernels/base/vector/float16.h"

GRACE_INLINE B BytesOf(const U* v) {
  const __m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
GRACE_INLINE B Raise(B b, int n) { return _mm256_slli_epi16(b, n); }
GRACE_INLINE uint32_t TopBits(B b) { return static_cast<uint32_t>(_mm256_movemask_epi8(b)); }
GRACE_INLINE B Push(B b, uint32_t word) {
  const __m256i spread =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i set = _mm256_cmpeq_epi8(And(_mm256_shuffle_epi8(SetU(word), spread), own), own);
  return _mm256_sub_epi8(_mm256_add_epi8(b, b), set);
}
GRACE_INLINE B CountFrom(B count, B b, uint8_t limit) {
  const B least = _mm256_set1_epi8(static_cast<char>(limit));
  return _mm256_sub_epi8(count, _mm256_cmpeq_epi8(_mm256_max_epu8(b, least), b));
}
GRACE_INLINE U Widen(B b, int i) {
  const __m128i half = i < 2 ? _mm256_castsi256_si128(b) : _mm256_extracti128_si256(b, 1);
  return _mm256_cvtepu8_epi32(i % 2 ? _mm_unpackhi_epi64(half, half) : half);
}

GRACE_INLINE D Square(const float* x) {
  const __m128 v = _mm_loadu_ps(x);
  const __m128i magnitude = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(kMagnitude));
  const __m128i normal = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(kSmallestNormal - 1));
  const __m256d wide = _mm256_cvtps_pd(_mm_and_ps(v, _mm_castsi128_ps(normal)));
  return _mm256_mul_pd(wide, wide);
}
GRACE_INLINE D AddEach(const D* v) {
  const D p = _mm256_hadd_pd(v[0], v[1]), q = _mm256_hadd_pd(v[2], v[3]);
  return _mm256_add_pd(_mm256_permute2f128_pd(p, q, 0x20), _mm256_permute2f128_pd(p, q, 0x31));
}
GRACE_INLINE void StoreD(double* out, D v) { _mm256_storeu_pd(out, v); }
GRACE_INLINE D Doubles(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
GRACE_INLINE D SetD(double x) { return _mm256_set1_pd(x); }
GRACE_INLINE D AddD(D a, D b) { return _mm256_add_pd(a, b); }
GRACE_INLINE D MulD(D a, D b) { return _mm256_mul_pd(a, b); }

GRACE_INLINE W SetW(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
GRACE_INLINE W MulWide(W a, W b) { return _mm256_mul_epu32(a, b); }
GRACE_INLINE W HighHalf(W v) { return _mm256_srli_epi64(v, 32); }
GRACE_INLINE W XorWide(W a, W b) { return Xor(a, b); }
GRACE_INLINE W XorWide(W a, W b, W c) { return Xor(a, Xor(b, c)); }
// Without this, GCC mixes the instructions of the chains of Philox, and has too few registers.
GRACE_INLINE void InOrder(W& a, W& b, W& c, W& d) {
  asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
}
GRACE_INLINE W Counters(uint64_t n) {
  return _mm256_add_epi64(SetW(n), _mm256_setr_epi64x(0, 2, 1, 3));
}
GRACE_INLINE void StoreBlocks(W a, W b, W c, W d, uint32_t* out) {
  const __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
  const __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xAA);
  StoreU(out, _mm256_unpacklo_epi64(ab, cd));
  StoreU(out + 8, _mm256_unpackhi_epi64(ab, cd));
}

}  // namespace avx2
}  // namespace grace
GRACE_END
