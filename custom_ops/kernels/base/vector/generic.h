// One lane, in plain C++, which the compiler vectorises as it can.
#pragma once

namespace grace {
namespace generic {

using F = float;
using U = int32_t;
using M = uint32_t;  // all ones or zero
struct B {
  uint64_t eight[4];
};
using H = uint16_t;
using D = double;
using W = uint64_t;

constexpr int kLanes = 1, kDoubles = 1, kFan = 2, kWides = 1, kChains = 1;

GRACE_INLINE F Load(const float* x) { return *x; }
GRACE_INLINE U LoadU(const uint32_t* x) { return static_cast<U>(*x); }
GRACE_INLINE void Store(float* out, F v) { *out = v; }
GRACE_INLINE void StoreU(uint32_t* out, U v) { *out = static_cast<uint32_t>(v); }
GRACE_INLINE H LoadH(const uint16_t* x) { return *x; }
GRACE_INLINE void StoreH(uint16_t* out, H v) { *out = v; }
GRACE_INLINE void Stream(const char* from, char* to) { std::memcpy(to, from, kLine); }
GRACE_INLINE void EndStreams() {}
GRACE_INLINE void StorePast(float* out, F v) { *out = v; }
GRACE_INLINE F Set(float x) { return x; }
GRACE_INLINE U SetU(uint32_t x) { return static_cast<U>(x); }
GRACE_INLINE U Lanes() { return 0; }
GRACE_INLINE U AsU(F v) { return static_cast<U>(BitsOf(v)); }
GRACE_INLINE F AsF(U v) { return FloatOf(static_cast<uint32_t>(v)); }

GRACE_INLINE F Add(F a, F b) { return a + b; }
GRACE_INLINE F Sub(F a, F b) { return a - b; }
GRACE_INLINE F Mul(F a, F b) { return a * b; }
GRACE_INLINE float SumOf(F v) { return v; }
GRACE_INLINE F Min(F a, F b) { return a < b ? a : b; }
GRACE_INLINE U Add(U a, U b) {
  return static_cast<U>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
GRACE_INLINE U Sub(U a, U b) {
  return static_cast<U>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
GRACE_INLINE U Add16(U a, U b) {
  const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  return static_cast<U>(((x + y) & 0xffffu) | ((x & 0xffff0000u) + (y & 0xffff0000u)));
}
GRACE_INLINE U MinInt(U a, U b) { return a < b ? a : b; }
GRACE_INLINE U MaxInt(U a, U b) { return a > b ? a : b; }
GRACE_INLINE uint32_t MaxOf(U v) { return static_cast<uint32_t>(v); }
GRACE_INLINE U And(U a, U b) { return a & b; }
GRACE_INLINE U Or(U a, U b) { return a | b; }
GRACE_INLINE U Xor(U a, U b) { return a ^ b; }
GRACE_INLINE M And(M a, M b) { return a & b; }
GRACE_INLINE M Or(M a, M b) { return a | b; }
GRACE_INLINE M Not(M m) { return ~m; }
template <int n>
GRACE_INLINE U ShiftLeft(U v) {
  return static_cast<U>(static_cast<uint32_t>(v) << n);
}
template <int n>
GRACE_INLINE U ShiftRight(U v) {
  return static_cast<U>(static_cast<uint32_t>(v) >> n);
}
GRACE_INLINE U ShiftLeft(U v, int n) { return static_cast<U>(static_cast<uint32_t>(v) << n); }
GRACE_INLINE U ShiftRight(U v, int n) { return static_cast<U>(static_cast<uint32_t>(v) >> n); }
GRACE_INLINE U SignBits(U v) { return v >> 31; }

GRACE_INLINE M Greater(U a, U b) { return -static_cast<M>(a > b); }
GRACE_INLINE M Equal(U a, U b) { return -static_cast<M>(a == b); }
GRACE_INLINE M AtMost(U a, U b) {
  return -static_cast<M>(static_cast<uint32_t>(a) <= static_cast<uint32_t>(b));
}
GRACE_INLINE M Normal(U v) {
  return -static_cast<M>((v & SetU(kMagnitude)) >= SetU(kSmallestNormal));
}
GRACE_INLINE U Blend(M m, U a, U b) { return (static_cast<U>(m) & a) | (static_cast<U>(~m) & b); }
GRACE_INLINE F Blend(M m, F a, F b) { return AsF(Blend(m, AsU(a), AsU(b))); }
GRACE_INLINE F Keep(M m, F v) { return FloatOf(m & BitsOf(v)); }
GRACE_INLINE uint32_t Bits(M m) { return m & 1; }
GRACE_INLINE M MaskOf(uint32_t bits) { return -(bits & 1); }
GRACE_INLINE M Negative(F v) { return -static_cast<M>(v < 0.0f); }
template <int n>
GRACE_INLINE F Butterfly(F v) {
  return v;  // there is no other lane
}
GRACE_INLINE U Compress(M, U v) { return v; }
GRACE_INLINE U Spread(M, U v) { return v; }
GRACE_INLINE F Lookup(const float* table, U u) { return table[u & 7]; }
GRACE_INLINE F LookupOf16(const float* table, U u) { return table[u & 15]; }

GRACE_INLINE F FromInt(U v) { return static_cast<float>(v); }
GRACE_INLINE U ToInt(F v) { return static_cast<int32_t>(v); }
// Adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even.
GRACE_INLINE F Rint(F v) { return (v + 12582912.0f) - 12582912.0f; }

GRACE_INLINE H Narrow(U v) { return static_cast<H>(v); }
GRACE_INLINE U Widen(H h) { return h; }
#include "kernels/base/vector/float16.h"

GRACE_INLINE B BytesOf(const U* v) {
  B bytes{};
  for (int i = 0; i < kGroup; ++i) {
    bytes.eight[i / 8] |= static_cast<uint64_t>(v[i]) << (8 * (i % 8));
  }
  return bytes;
}
GRACE_INLINE B Raise(B b, int n) {
  for (uint64_t& eight : b.eight) eight <<= n;
  return b;
}
GRACE_INLINE uint32_t TopBits(B b) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    // Gathers the lowest bit of each of the eight bytes into one byte.
    const uint64_t lowest = b.eight[i] >> 7 & 0x0101010101010101u;
    word |= static_cast<uint32_t>(lowest * 0x0102040810204080u >> 56) << (8 * i);
  }
  return word;
}
GRACE_INLINE B Push(B b, uint32_t word) {
  for (int i = 0; i < 4; ++i) {
    // Spreads the eight bits of a byte over eight bytes.
    const uint64_t own = ((word >> (8 * i) & 0xff) * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t bit = (own + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
    b.eight[i] = b.eight[i] << 1 | bit;
  }
  return b;
}
GRACE_INLINE B CountFrom(B count, const B& b, uint8_t limit) {
  auto* counts = reinterpret_cast<uint8_t*>(count.eight);
  const auto* bytes = reinterpret_cast<const uint8_t*>(b.eight);
  for (int i = 0; i < kGroup; ++i)
    counts[i] = static_cast<uint8_t>(counts[i] + (bytes[i] >= limit));
  return count;
}
GRACE_INLINE U Widen(const B& b, int i) { return reinterpret_cast<const uint8_t*>(b.eight)[i]; }

GRACE_INLINE D Square(const float* x) {
  const double v = Flush(*x);
  return v * v;
}
GRACE_INLINE D AddEach(const D* v) { return v[0] + v[1]; }
GRACE_INLINE void StoreD(double* out, D v) { *out = v; }
GRACE_INLINE D Doubles(const float* x) { return *x; }
GRACE_INLINE D SetD(double x) { return x; }
GRACE_INLINE D AddD(D a, D b) { return a + b; }
GRACE_INLINE D MulD(D a, D b) { return a * b; }

GRACE_INLINE W SetW(uint64_t x) { return x; }
GRACE_INLINE W MulWide(W a, W b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) * static_cast<uint32_t>(b);
}
GRACE_INLINE W HighHalf(W v) { return v >> 32; }
GRACE_INLINE W XorWide(W a, W b) { return a ^ b; }
GRACE_INLINE W XorWide(W a, W b, W c) { return a ^ b ^ c; }
GRACE_INLINE void InOrder(W&, W&, W&, W&) {}
GRACE_INLINE W Counters(uint64_t n) { return n; }
GRACE_INLINE void StoreBlocks(W a, W b, W c, W d, uint32_t* out) {
  out[0] = static_cast<uint32_t>(a);
  out[1] = static_cast<uint32_t>(b);
  out[2] = static_cast<uint32_t>(c);
  out[3] = static_cast<uint32_t>(d);
}

}  // namespace generic
}  // namespace grace
