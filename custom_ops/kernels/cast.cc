// The conversions work on the bits as integers, so that the compiler vectorises them for every
// instruction set and the results are the same on all.
#include "cast.h"

#include <algorithm>
#include <atomic>

#include "vector.h"

namespace grace {

constexpr uint32_t kRebias = 112u << 23;  // between the exponents of float and float16

GRACE_INLINE uint16_t ToFloat16(float x) {
  const uint32_t bits = BitsOf(x), key = bits & kMagnitude;
  const uint32_t normal = (key - kRebias + 0xfff + (key >> 13 & 1)) >> 13;
  // Below 2^-14 a sum with 1/2 rounds to multiples of 2^-24, the denormals of float16.
  const uint32_t small = BitsOf(FloatOf(key) + 0.5f) - BitsOf(0.5f);
  const uint32_t nan = 0x7e00 | (key >> 13 & 0x3ff);
  uint32_t half = key < 0x38800000u ? small : normal;
  half = key >= 0x47800000u ? 0x7c00u : half;
  half = key > kInfinity ? nan : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

GRACE_INLINE float FromFloat16(uint16_t half) {
  const uint32_t key = static_cast<uint32_t>(half & 0x7fff) << 13;
  const uint32_t quiet = key > 0x0f800000u ? 0x00400000u : 0u;
  // A denormal of float16 is so many times 2^-24: its bits below those of 2^-14, minus 2^-14.
  const uint32_t small = BitsOf(FloatOf(key + (113u << 23)) - FloatOf(113u << 23));
  uint32_t bits = key + kRebias;
  bits = key >= 0x0f800000u ? bits + kRebias : bits;
  bits = key < 0x00800000u ? small : bits;
  return FloatOf(bits | quiet | static_cast<uint32_t>(half & 0x8000) << 16);
}

GRACE_INLINE uint16_t ToBfloat16(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t half = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? 0x7fc0u : half);
}

GRACE_INLINE float FromBfloat16(uint16_t half) {
  return FloatOf(static_cast<uint32_t>(half) << 16);
}

// rest, unless it is null, is acc itself and gets acc minus what it became.
#define GRACE_CAST_LOOPS(Type)                                                              \
  GRACE_INLINE void To##Type##s(const float* acc, int64_t count, float* rest,               \
                                uint16_t* halves) {                                         \
    for (int64_t i = 0; i < count; ++i) halves[i] = To##Type(acc[i]);                       \
    if (!rest) return;                                                                      \
    for (int64_t i = 0; i < count; ++i) rest[i] -= From##Type(halves[i]);                   \
  }                                                                                         \
  GRACE_INLINE bool From##Type##s(const uint16_t* halves, int64_t count, float factor,      \
                                  float* total) {                                           \
    uint32_t bad = 0;                                                                       \
    for (int64_t i = 0; i < count; ++i) {                                                   \
      total[i] = From##Type(halves[i]) * factor;                                            \
      bad |= (BitsOf(total[i]) & kInfinity) == kInfinity;                                   \
    }                                                                                       \
    return bad == 0;                                                                        \
  }
GRACE_CAST_LOOPS(Float16)
GRACE_CAST_LOOPS(Bfloat16)

#if GRACE_X86
GRACE_BEGIN_AVX512
namespace avx512 {

// With the processor's own conversions, whose results are those above.
GRACE_INLINE void ToFloat16s(const float* acc, int64_t count, float* rest,
                                    uint16_t* halves) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512 v = _mm512_loadu_ps(acc + i);
    const __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves + i), half);
    if (rest) _mm512_storeu_ps(rest + i, _mm512_sub_ps(v, _mm512_cvtph_ps(half)));
  }
  grace::ToFloat16s(acc + i, count - i, rest ? rest + i : nullptr, halves + i);
}

GRACE_INLINE bool FromFloat16s(const uint16_t* halves, int64_t count, float factor,
                                      float* total) {
  const __m512i infinity = _mm512_set1_epi32(kInfinity);
  __mmask16 bad = 0;
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + i));
    const __m512 v = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(factor));
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(v), infinity);
    bad |= _mm512_cmpeq_epi32_mask(exponent, infinity);
    _mm512_storeu_ps(total + i, v);
  }
  return grace::FromFloat16s(halves + i, count - i, factor, total + i) & (bad == 0);
}

}  // namespace avx512
GRACE_END
#endif

}  // namespace grace

#define GRACE_KERNEL "each/cast.h"
#include "each_isa.h"

namespace grace {

bool CastList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
              Half type, uint16_t* halves) {
  std::vector<int64_t> offsets{0};
  for (const Source& source : sources) offsets.push_back(offsets.back() + source.n);
  const Compensate compensate = ChooseCompensate();
  const auto to = GRACE_CHOOSE(To);
  const bool bypass = TooLargeToCache(offsets.back());
  std::atomic<bool> all{true};
  LoopOver(sources).For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    uint16_t* own = halves + offsets[t];
    const bool finite = EncodePiece(
        sources[t], multiplier, compensate, first, last, bypass,
        [&](int64_t begin, int64_t count, const float* acc, float* writable) {
          alignas(64) uint16_t buffer[kChunk];
          to(type, acc, count, writable, buffer);
          Store(buffer, 2 * count, bypass, own + begin);
        });
    EndStores(bypass);
    if (!finite) all = false;
  });
  return all;
}

bool UncastList(const Executor& executor, const std::vector<Target>& targets, Half type,
                const uint16_t* halves, float factor) {
  std::vector<int64_t> offsets{0};
  for (const Target& target : targets) offsets.push_back(offsets.back() + target.n);
  const auto from = GRACE_CHOOSE(From);
  const bool bypass = TooLargeToCache(offsets.back());
  std::atomic<bool> all{true};
  LoopOver(targets).For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    alignas(64) float buffer[kChunk];
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      if (!from(type, halves + offsets[t] + begin, count, factor, buffer)) all = false;
      Store(buffer, 4 * count, bypass, targets[t].total + begin);
    }
    EndStores(bypass);
  });
  return all;
}

}  // namespace grace
