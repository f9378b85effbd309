// Sixteen lanes of AVX-512 (F, BW, DQ, VL).
#pragma once

GRACE_BEGIN_AVX512
namespace grace {
namespace avx512 {

using F = __m512;
using U = __m512i;
using M = __mmask16;
using B = __m256i;
using H = __m256i;
using D = __m512d;
using W = __m512i;

constexpr int kLanes = 16, kDoubles = 8, kFan = 8, kWides = 8, kChains = 4;

GRACE_INLINE F Load(const float* x) { return _mm512_loadu_ps(x); }
GRACE_INLINE U LoadU(const uint32_t* x) { return _mm512_loadu_si512(x); }
GRACE_INLINE void Store(float* out, F v) { _mm512_storeu_ps(out, v); }
GRACE_INLINE void StoreU(uint32_t* out, U v) { _mm512_storeu_si512(out, v); }
GRACE_INLINE H LoadH(const uint16_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
GRACE_INLINE void StoreH(uint16_t* out, H v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v);
}
GRACE_INLINE void Stream(const char* from, char* to) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
GRACE_INLINE void EndStreams() { _mm_sfence(); }
GRACE_INLINE void StorePast(float* out, F v) { _mm512_stream_ps(out, v); }
GRACE_INLINE F Set(float x) { return _mm512_set1_ps(x); }
GRACE_INLINE U SetU(uint32_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
GRACE_INLINE U Lanes() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
GRACE_INLINE U AsU(F v) { return _mm512_castps_si512(v); }
GRACE_INLINE F AsF(U v) { return _mm512_castsi512_ps(v); }

GRACE_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
GRACE_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
GRACE_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
GRACE_INLINE float SumOf(F v) {
  const __m256 lower = _mm512_maskz_extractf32x8_ps(0xff, v, 0);
  return avx2::SumOf(_mm256_add_ps(lower, _mm512_maskz_extractf32x8_ps(0xff, v, 1)));
}
GRACE_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }
GRACE_INLINE U Add(U a, U b) { return _mm512_add_epi32(a, b); }
GRACE_INLINE U Sub(U a, U b) { return _mm512_sub_epi32(a, b); }
GRACE_INLINE U Add16(U a, U b) { return _mm512_add_epi16(a, b); }
GRACE_INLINE U MinInt(U a, U b) { return _mm512_min_epi32(a, b); }
GRACE_INLINE U MaxInt(U a, U b) { return _mm512_max_epi32(a, b); }
GRACE_INLINE uint32_t MaxOf(U v) {
  alignas(64) uint32_t lanes[kLanes];
  StoreU(lanes, v);
  return avx2::MaxOf(avx2::MaxInt(avx2::LoadU(lanes), avx2::LoadU(lanes + 8)));
}
GRACE_INLINE U And(U a, U b) { return _mm512_and_si512(a, b); }
GRACE_INLINE U Or(U a, U b) { return _mm512_or_si512(a, b); }
GRACE_INLINE U Xor(U a, U b) { return _mm512_xor_si512(a, b); }
GRACE_INLINE M And(M a, M b) { return static_cast<M>(a & b); }
GRACE_INLINE M Or(M a, M b) { return static_cast<M>(a | b); }
GRACE_INLINE M Not(M m) { return static_cast<M>(~m); }
template <int n>
GRACE_INLINE U ShiftLeft(U v) {
  return _mm512_slli_epi32(v, n);
}
template <int n>
GRACE_INLINE U ShiftRight(U v) {
  return _mm512_srli_epi32(v, n);
}
GRACE_INLINE U ShiftLeft(U v, int n) { return _mm512_sll_epi32(v, _mm_cvtsi32_si128(n)); }
GRACE_INLINE U ShiftRight(U v, int n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(n)); }
GRACE_INLINE U SignBits(U v) { return _mm512_srai_epi32(v, 31); }

GRACE_INLINE M Greater(U a, U b) { return _mm512_cmpgt_epi32_mask(a, b); }
GRACE_INLINE M Equal(U a, U b) { return _mm512_cmpeq_epi32_mask(a, b); }
GRACE_INLINE M AtMost(U a, U b) { return _mm512_cmple_epu32_mask(a, b); }
GRACE_INLINE M Normal(U v) { return _mm512_test_epi32_mask(v, SetU(kInfinity)); }
GRACE_INLINE U Blend(M m, U a, U b) { return _mm512_mask_blend_epi32(m, b, a); }
GRACE_INLINE F Blend(M m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }
GRACE_INLINE F Keep(M m, F v) { return _mm512_maskz_mov_ps(m, v); }
GRACE_INLINE uint32_t Bits(M m) { return m; }
GRACE_INLINE M MaskOf(uint32_t bits) { return static_cast<M>(bits); }
GRACE_INLINE M Negative(F v) { return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ); }
// The sum with the lane n further on, or the difference from the lane n before. A product with 1 or
// -1 is exact, so the fused operation rounds as an addition does.
template <int n>
GRACE_INLINE F Butterfly(F v) {
  const F other = n == 8   ? _mm512_shuffle_f32x4(v, v, 0x4E)
                  : n == 4 ? _mm512_shuffle_f32x4(v, v, 0xB1)
                  : n == 2 ? _mm512_permute_ps(v, 0x4E)
                           : _mm512_permute_ps(v, 0xB1);
  constexpr __mmask16 upper = n == 8 ? 0xFF00 : n == 4 ? 0xF0F0 : n == 2 ? 0xCCCC : 0xAAAA;
  const F signs = _mm512_mask_blend_ps(upper, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
  return _mm512_fmadd_ps(v, signs, other);
}
GRACE_INLINE U Compress(M m, U v) { return _mm512_maskz_compress_epi32(m, v); }

GRACE_INLINE U Spread(M m, U v) { return _mm512_maskz_expand_epi32(m, v); }
GRACE_INLINE F Lookup(const float* table, U u) {
  return _mm512_permutexvar_ps(u, _mm512_broadcast_f32x8(_mm256_loadu_ps(table)));
}
GRACE_INLINE F LookupOf16(const float* table, U u) {
  return _mm512_permutexvar_ps(u, _mm512_loadu_ps(table));
}

GRACE_INLINE F FromInt(U v) { return _mm512_cvtepi32_ps(v); }
GRACE_INLINE U ToInt(F v) { return _mm512_cvttps_epi32(v); }
GRACE_INLINE F Rint(F v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

GRACE_INLINE H Narrow(U v) { return _mm512_cvtepi32_epi16(v); }
GRACE_INLINE U Widen(H h) { return _mm512_cvtepu16_epi32(h); }
GRACE_INLINE H ToFloat16(F v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
GRACE_INLINE F FromFloat16(H h) { return _mm512_cvtph_ps(h); }

GRACE_INLINE B BytesOf(const U* v) {
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(v[1]), _mm512_cvtepi32_epi8(v[0]));
}
GRACE_INLINE B Raise(B b, int n) { return _mm256_slli_epi16(b, n); }
GRACE_INLINE uint32_t TopBits(B b) { return _mm256_movepi8_mask(b); }
GRACE_INLINE B Push(B b, uint32_t word) {
  return _mm256_sub_epi8(_mm256_add_epi8(b, b), _mm256_movm_epi8(word));
}
GRACE_INLINE B CountFrom(B count, B b, uint8_t limit) {
  const __mmask32 from = _mm256_cmpge_epu8_mask(b, _mm256_set1_epi8(static_cast<char>(limit)));
  return _mm256_mask_add_epi8(count, from, count, _mm256_set1_epi8(1));
}
GRACE_INLINE U Widen(B b, int i) {
  return _mm512_cvtepu8_epi32(i ? _mm256_extracti128_si256(b, 1) : _mm256_castsi256_si128(b));
}

GRACE_INLINE D Square(const float* x) {
  const __m256 v = _mm256_loadu_ps(x);
  const __mmask8 normal =
      _mm256_test_epi32_mask(_mm256_castps_si256(v), _mm256_set1_epi32(kInfinity));
  const __m512d wide = _mm512_cvtps_pd(_mm256_maskz_mov_ps(normal, v));
  return _mm512_mul_pd(wide, wide);
}
GRACE_INLINE D AddHalves(D a, D b) {
  return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
}
GRACE_INLINE D AddEach(const D* v) {
  D pairs[4];
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm512_add_pd(_mm512_unpacklo_pd(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_pd(v[2 * i], v[2 * i + 1]));
  }
  return AddHalves(AddHalves(pairs[0], pairs[1]), AddHalves(pairs[2], pairs[3]));
}
GRACE_INLINE void StoreD(double* out, D v) { _mm512_storeu_pd(out, v); }
GRACE_INLINE D Doubles(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
GRACE_INLINE D SetD(double x) { return _mm512_set1_pd(x); }
GRACE_INLINE D AddD(D a, D b) { return _mm512_add_pd(a, b); }
GRACE_INLINE D MulD(D a, D b) { return _mm512_mul_pd(a, b); }

GRACE_INLINE W SetW(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
GRACE_INLINE W MulWide(W a, W b) { return _mm512_mul_epu32(a, b); }
GRACE_INLINE W HighHalf(W v) { return _mm512_srli_epi64(v, 32); }
GRACE_INLINE W XorWide(W a, W b) { return _mm512_xor_si512(a, b); }
GRACE_INLINE W XorWide(W a, W b, W c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
GRACE_INLINE void InOrder(W&, W&, W&, W&) {}
GRACE_INLINE W Counters(uint64_t n) {
  return _mm512_add_epi64(SetW(n), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
}
GRACE_INLINE void StoreBlocks(W a, W b, W c, W d, uint32_t* out) {
  // The even words of the one beside the even words of the other.
  const auto even = static_cast<_MM_PERM_ENUM>(0xA0);
  const __m512i ab = _mm512_mask_shuffle_epi32(a, 0xAAAA, b, even);
  const __m512i cd = _mm512_mask_shuffle_epi32(c, 0xAAAA, d, even);
  StoreU(out, _mm512_unpacklo_epi64(ab, cd));
  StoreU(out + 16, _mm512_unpackhi_epi64(ab, cd));
}

}  // namespace avx512
}  // namespace grace
GRACE_END
