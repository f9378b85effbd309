// Four lanes of NEON, on 64-bit ARM.
#pragma once

#include <arm_neon.h>

namespace grace {
namespace neon {

using F = float32x4_t;
using U = uint32x4_t;
using M = uint32x4_t;  // all ones or zero in each lane
using B = uint8x16x2_t;
using H = uint16x4_t;
using D = float64x2_t;
using W = uint64x2_t;

constexpr int kLanes = 4, kDoubles = 2, kFan = 2, kWides = 2, kChains = 4;

GRACE_INLINE F Load(const float* x) { return vld1q_f32(x); }
GRACE_INLINE U LoadU(const uint32_t* x) { return vld1q_u32(x); }
GRACE_INLINE void Store(float* out, F v) { vst1q_f32(out, v); }
GRACE_INLINE void StoreU(uint32_t* out, U v) { vst1q_u32(out, v); }
GRACE_INLINE H LoadH(const uint16_t* x) { return vld1_u16(x); }
GRACE_INLINE void StoreH(uint16_t* out, H v) { vst1_u16(out, v); }
using generic::EndStreams;
using generic::Stream;
GRACE_INLINE void StorePast(float* out, F v) { Store(out, v); }
GRACE_INLINE F Set(float x) { return vdupq_n_f32(x); }
GRACE_INLINE U SetU(uint32_t x) { return vdupq_n_u32(x); }
GRACE_INLINE U Lanes() { return U{0, 1, 2, 3}; }
GRACE_INLINE U AsU(F v) { return vreinterpretq_u32_f32(v); }
GRACE_INLINE F AsF(U v) { return vreinterpretq_f32_u32(v); }
GRACE_INLINE int32x4_t Signed(U v) { return vreinterpretq_s32_u32(v); }
GRACE_INLINE U Unsigned(int32x4_t v) { return vreinterpretq_u32_s32(v); }

GRACE_INLINE F Add(F a, F b) { return vaddq_f32(a, b); }
GRACE_INLINE F Sub(F a, F b) { return vsubq_f32(a, b); }
GRACE_INLINE F Mul(F a, F b) { return vmulq_f32(a, b); }
GRACE_INLINE float SumOf(F v) {
  const float32x2_t half = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
GRACE_INLINE F Min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
GRACE_INLINE U Add(U a, U b) { return vaddq_u32(a, b); }
GRACE_INLINE U Sub(U a, U b) { return vsubq_u32(a, b); }
GRACE_INLINE U Add16(U a, U b) {
  return vreinterpretq_u32_u16(vaddq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}
GRACE_INLINE U MinInt(U a, U b) { return Unsigned(vminq_s32(Signed(a), Signed(b))); }
GRACE_INLINE U MaxInt(U a, U b) { return Unsigned(vmaxq_s32(Signed(a), Signed(b))); }
GRACE_INLINE uint32_t MaxOf(U v) { return static_cast<uint32_t>(vmaxvq_s32(Signed(v))); }
GRACE_INLINE U And(U a, U b) { return vandq_u32(a, b); }
GRACE_INLINE U Or(U a, U b) { return vorrq_u32(a, b); }
GRACE_INLINE U Xor(U a, U b) { return veorq_u32(a, b); }
GRACE_INLINE M Not(M m) { return vmvnq_u32(m); }
template <int n>
GRACE_INLINE U ShiftLeft(U v) {
  return vshlq_n_u32(v, n);
}
template <int n>
GRACE_INLINE U ShiftRight(U v) {
  return vshrq_n_u32(v, n);
}
GRACE_INLINE U ShiftLeft(U v, int n) { return vshlq_u32(v, vdupq_n_s32(n)); }
GRACE_INLINE U ShiftRight(U v, int n) { return vshlq_u32(v, vdupq_n_s32(-n)); }
GRACE_INLINE U SignBits(U v) { return Unsigned(vshrq_n_s32(Signed(v), 31)); }

GRACE_INLINE M Greater(U a, U b) { return vcgtq_s32(Signed(a), Signed(b)); }
GRACE_INLINE M Equal(U a, U b) { return vceqq_u32(a, b); }
GRACE_INLINE M AtMost(U a, U b) { return vcleq_u32(a, b); }
GRACE_INLINE M Normal(U v) { return vtstq_u32(v, SetU(kInfinity)); }
GRACE_INLINE U Blend(M m, U a, U b) { return vbslq_u32(m, a, b); }
GRACE_INLINE F Blend(M m, F a, F b) { return vbslq_f32(m, a, b); }
GRACE_INLINE F Keep(M m, F v) { return AsF(And(m, AsU(v))); }
GRACE_INLINE uint32_t Bits(M m) { return vaddvq_u32(And(m, U{1, 2, 4, 8})); }
GRACE_INLINE M MaskOf(uint32_t bits) { return vtstq_u32(SetU(bits), U{1, 2, 4, 8}); }
GRACE_INLINE M Negative(F v) { return vcltzq_f32(v); }
// The sum with the lane n further on, or the difference from the lane n before.
template <int n>
GRACE_INLINE F Butterfly(F v) {
  const F other = n == 2 ? vextq_f32(v, v, 2) : vrev64q_f32(v);
  const U upper = n == 2 ? U{0, 0, kSignBit, kSignBit} : U{0, kSignBit, 0, kSignBit};
  return Add(other, AsF(Xor(AsU(v), upper)));
}
GRACE_INLINE U Compress(M m, U v) {
  uint32_t all[kLanes], residual_out[kLanes] = {}, bits = Bits(m);
  StoreU(all, v);
  for (int count = 0; bits; bits &= bits - 1) residual_out[count++] = all[__builtin_ctz(bits)];
  return LoadU(residual_out);
}

GRACE_INLINE U Spread(M m, U v) {
  uint32_t all[kLanes], spread[kLanes] = {}, bits = Bits(m);
  StoreU(all, v);
  for (int count = 0; bits; bits &= bits - 1) spread[__builtin_ctz(bits)] = all[count++];
  return LoadU(spread);
}
GRACE_INLINE F Lookup(const float* table, U u) {
  const uint8x16x2_t bytes{
      {vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4))}};
  const U places = vmlaq_n_u32(SetU(0x03020100), And(u, SetU(7)), 0x04040404);
  return vreinterpretq_f32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_u32(places)));
}
GRACE_INLINE F LookupOf16(const float* table, U u) {
  uint8x16x4_t bytes;
  for (int i = 0; i < 4; ++i) bytes.val[i] = vreinterpretq_u8_f32(vld1q_f32(table + 4 * i));
  const U places = vmlaq_n_u32(SetU(0x03020100), And(u, SetU(15)), 0x04040404);
  return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(places)));
}

GRACE_INLINE F FromInt(U v) { return vcvtq_f32_s32(Signed(v)); }
GRACE_INLINE U ToInt(F v) { return Unsigned(vcvtq_s32_f32(v)); }
GRACE_INLINE F Rint(F v) { return vrndnq_f32(v); }

GRACE_INLINE H Narrow(U v) { return vmovn_u32(v); }
GRACE_INLINE U Widen(H h) { return vmovl_u16(h); }
GRACE_INLINE H ToFloat16(F v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
GRACE_INLINE F FromFloat16(H h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }

GRACE_INLINE B BytesOf(const U* v) {
  B bytes;
  for (int i = 0; i < 2; ++i, v += 4) {
    const uint16x8_t low = vcombine_u16(vmovn_u32(v[0]), vmovn_u32(v[1]));
    const uint16x8_t high = vcombine_u16(vmovn_u32(v[2]), vmovn_u32(v[3]));
    bytes.val[i] = vcombine_u8(vmovn_u16(low), vmovn_u16(high));
  }
  return bytes;
}
GRACE_INLINE B Raise(B b, int n) {
  const int8x16_t by = vdupq_n_s8(static_cast<int8_t>(n));
  for (uint8x16_t& half : b.val) half = vshlq_u8(half, by);
  return b;
}
// Bit i % 8 in byte i.
GRACE_INLINE uint8x16_t OwnBits() { return vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)); }
GRACE_INLINE uint32_t TopBits(B b) {
  uint32_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const uint8x16_t own = vandq_u8(vcltzq_s8(vreinterpretq_s8_u8(b.val[i])), OwnBits());
    word |= static_cast<uint32_t>(vaddv_u8(vget_low_u8(own))) << (16 * i);
    word |= static_cast<uint32_t>(vaddv_u8(vget_high_u8(own))) << (16 * i + 8);
  }
  return word;
}
GRACE_INLINE B Push(B b, uint32_t word) {
  for (int i = 0; i < 2; ++i) {
    const uint8x8_t low = vdup_n_u8(static_cast<uint8_t>(word >> (16 * i)));
    const uint8x8_t high = vdup_n_u8(static_cast<uint8_t>(word >> (16 * i + 8)));
    const uint8x16_t set = vtstq_u8(vcombine_u8(low, high), OwnBits());
    b.val[i] = vsubq_u8(vaddq_u8(b.val[i], b.val[i]), set);
  }
  return b;
}
GRACE_INLINE B CountFrom(B count, B b, uint8_t limit) {
  const uint8x16_t least = vdupq_n_u8(limit);
  for (int i = 0; i < 2; ++i) count.val[i] = vsubq_u8(count.val[i], vcgeq_u8(b.val[i], least));
  return count;
}
GRACE_INLINE U Widen(B b, int i) {
  // A byte of each lane's index is inside the table; the others are outside and give zero.
  const U index = Add(SetU(0xffffff00u + 4 * (i % 4)), Lanes());
  return vreinterpretq_u32_u8(vqtbl1q_u8(b.val[i / 4], vreinterpretq_u8_u32(index)));
}

GRACE_INLINE D Square(const float* x) {
  const uint32x2_t v = vreinterpret_u32_f32(vld1_f32(x));
  const uint32x2_t normal = vtst_u32(v, vdup_n_u32(kInfinity));
  const float64x2_t wide = vcvt_f64_f32(vreinterpret_f32_u32(vand_u32(v, normal)));
  return vmulq_f64(wide, wide);
}
GRACE_INLINE D AddEach(const D* v) { return vpaddq_f64(v[0], v[1]); }
GRACE_INLINE void StoreD(double* out, D v) { vst1q_f64(out, v); }
GRACE_INLINE D Doubles(const float* x) { return vcvt_f64_f32(vld1_f32(x)); }
GRACE_INLINE D SetD(double x) { return vdupq_n_f64(x); }
GRACE_INLINE D AddD(D a, D b) { return vaddq_f64(a, b); }
GRACE_INLINE D MulD(D a, D b) { return vmulq_f64(a, b); }

GRACE_INLINE W SetW(uint64_t x) { return vdupq_n_u64(x); }
GRACE_INLINE W MulWide(W a, W b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }
GRACE_INLINE W HighHalf(W v) { return vshrq_n_u64(v, 32); }
GRACE_INLINE W XorWide(W a, W b) { return veorq_u64(a, b); }
GRACE_INLINE W XorWide(W a, W b, W c) { return veorq_u64(a, veorq_u64(b, c)); }
GRACE_INLINE void InOrder(W&, W&, W&, W&) {}
GRACE_INLINE W Counters(uint64_t n) { return vaddq_u64(SetW(n), W{0, 1}); }
GRACE_INLINE void StoreBlocks(W a, W b, W c, W d, uint32_t* out) {
  const W ab = vsliq_n_u64(a, b, 32), cd = vsliq_n_u64(c, d, 32);
  StoreU(out, vreinterpretq_u32_u64(vzip1q_u64(ab, cd)));
  StoreU(out + 4, vreinterpretq_u32_u64(vzip2q_u64(ab, cd)));
}

}  // namespace neon
}  // namespace grace
