#include "quantize.h"

#include <algorithm>

#include "block_factors.h"
#include "dispatch.h"
#include "philox_blocks.h"
#include "words.h"

namespace grace {
namespace {

struct Job {
  const float* scales;
  int64_t n;
  Quantization quantization;
  const PhiloxSchedule* schedule;
};

using Factors = BlockFactors<Inverse>;

}  // namespace

namespace generic {

// Adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even.
constexpr float kRound = 12582912.0f;

static void Codes(const float* x, const float* factors, const uint32_t* random, int32_t levels,
                  int32_t* codes) {
  const float top = static_cast<float>(levels);
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    float q = Flush(FloatOf(bits & kMagnitude)) * factors[i];
    if (random) q += static_cast<float>(static_cast<int32_t>(random[i] >> 8)) * 0x1p-24f;
    // Clamped before it is rounded, which is the same as after, and makes NaN the top level.
    q = q < top ? q : top;
    const int32_t level = static_cast<int32_t>(random ? q : (q + kRound) - kRound);
    codes[i] = bits & kSignBit ? levels - level : levels + level;
  }
}

// Gathers bit 0 of each of the eight bytes into one byte.
static inline uint32_t BitOfEachByte(uint64_t bytes) {
  return static_cast<uint32_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

static void Planes(const int32_t* codes, int32_t bits, uint32_t* words) {
  for (int32_t from = 0; from < bits; from += 8) {
    uint64_t bytes[4] = {};
    for (int i = 0; i < kGroup; ++i) {
      bytes[i / 8] |= static_cast<uint64_t>(codes[i] >> from & 0xff) << (8 * (i % 8));
    }
    for (int32_t p = from; p < std::min(bits, from + 8); ++p) {
      words[p] = 0;
      for (int i = 0; i < 4; ++i) words[p] |= BitOfEachByte(bytes[i] >> (p - from)) << (8 * i);
    }
  }
}

template <bool kStochastic, int kBits>
static void Groups(const Job& job, int64_t begin, int64_t end, const float* x, uint32_t* words) {
  const Quantization& q = job.quantization;
  const int32_t bits = kBits ? kBits : q.bits;
  Factors blocks(job.scales, job.n, q.block, q.levels, begin);
  alignas(64) uint32_t random[kBatch];
  for (int64_t i = begin; i < end; i += kGroup, x += kGroup, words += bits) {
    float factors[kGroup];
    int32_t codes[kGroup];
    blocks.Group(i, factors);
    const int64_t at = (i - begin) % kBatch;
    if (kStochastic && at == 0) PhiloxBatch(*job.schedule, i / 4, random);
    Codes(x, factors, kStochastic ? random + at : nullptr, q.levels, codes);
    Planes(codes, bits, words);
  }
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

template <bool kStochastic>
static GRACE_INLINE __m256i Codes(__m256i x, __m256 factor, __m256i random, __m256i levels) {
  const __m256 top = _mm256_cvtepi32_ps(levels);
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(kMagnitude));
  const __m256i normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kSmallestNormal - 1));
  __m256 q = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(magnitude, normal)), factor);
  if (kStochastic) {
    const __m256 u = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(random, 8)),
                                   _mm256_set1_ps(0x1p-24f));
    q = _mm256_add_ps(q, u);
  }
  q = _mm256_min_ps(q, top);  // of NaN and the top level: the second
  if (!kStochastic) q = _mm256_round_ps(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // The sign matters only where q is not 0, so minus zero needs no care.
  return _mm256_add_epi32(levels, _mm256_sign_epi32(_mm256_cvttps_epi32(q),
                                                    _mm256_or_si256(x, _mm256_set1_epi32(1))));
}

// The low bytes of 32 codes, in order.
static GRACE_INLINE __m256i Bytes(const __m256i* codes) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i a = _mm256_packs_epi32(_mm256_and_si256(codes[0], low),
                                       _mm256_and_si256(codes[1], low));
  const __m256i b = _mm256_packs_epi32(_mm256_and_si256(codes[2], low),
                                       _mm256_and_si256(codes[3], low));
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static GRACE_INLINE void Planes(__m256i* codes, int32_t bits, uint32_t* words) {
  for (int32_t from = 0; from < bits; from += 8) {
    __m256i bytes = Bytes(codes);
    const int32_t count = std::min(bits - from, 8);
    bytes = _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(8 - count));
    for (int32_t p = count - 1; p >= 0; --p) {
      words[from + p] = static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
      bytes = _mm256_add_epi8(bytes, bytes);
    }
    for (int i = 0; i < 4; ++i) codes[i] = _mm256_srli_epi32(codes[i], 8);
  }
}

template <bool kStochastic, int kBits>
static void Groups(const Job& job, int64_t begin, int64_t end, const float* x, uint32_t* words) {
  const Quantization& q = job.quantization;
  const int32_t bits = kBits ? kBits : q.bits;
  Factors blocks(job.scales, job.n, q.block, q.levels, begin);
  alignas(64) uint32_t random[kBatch];
  const __m256i levels = _mm256_set1_epi32(q.levels);
  for (int64_t i = begin; i < end; i += kGroup, x += kGroup, words += bits) {
    __m256 factors[4];
    if (blocks.Uniform(i)) {
      for (__m256& factor : factors) factor = _mm256_set1_ps(blocks.factor());
    } else {
      float each[kGroup];
      blocks.Group(i, each);
      for (int j = 0; j < 4; ++j) factors[j] = _mm256_loadu_ps(each + 8 * j);
    }
    const int64_t at = (i - begin) % kBatch;
    if (kStochastic && at == 0) PhiloxBatch(*job.schedule, i / 4, random);
    __m256i codes[4];
    for (int j = 0; j < 4; ++j) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8 * j));
      const auto* own = reinterpret_cast<const __m256i*>(random + at + 8 * j);
      const __m256i drawn = kStochastic ? _mm256_load_si256(own) : v;
      codes[j] = Codes<kStochastic>(v, factors[j], drawn, levels);
    }
    Planes(codes, bits, words);
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

template <bool kStochastic>
static GRACE_INLINE __m512i Codes(__m512i x, __m512 factor, __m512i random, __m512i levels) {
  const __m512 top = _mm512_cvtepi32_ps(levels);
  const __mmask16 normal = _mm512_test_epi32_mask(x, _mm512_set1_epi32(kInfinity));
  const __m512i magnitude = _mm512_maskz_and_epi32(normal, x, _mm512_set1_epi32(kMagnitude));
  __m512 q = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), factor);
  if (kStochastic) {
    const __m512 u = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(random, 8)),
                                   _mm512_set1_ps(0x1p-24f));
    q = _mm512_add_ps(q, u);
  }
  q = _mm512_min_ps(q, top);  // of NaN and the top level: the second
  const __m512i level =
      kStochastic ? _mm512_cvttps_epi32(q)
                  : _mm512_cvt_roundps_epi32(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i up = _mm512_add_epi32(levels, level);
  // The sign matters only where q is not 0, so minus zero needs no care.
  return _mm512_mask_sub_epi32(up, _mm512_movepi32_mask(x), levels, level);
}

template <bool kStochastic, int kBits>
static void Groups(const Job& job, int64_t begin, int64_t end, const float* x, uint32_t* words) {
  const Quantization& q = job.quantization;
  const int32_t bits = kBits ? kBits : q.bits;
  Factors blocks(job.scales, job.n, q.block, q.levels, begin);
  alignas(64) uint32_t random[kBatch];
  const __m512i levels = _mm512_set1_epi32(q.levels);
  for (int64_t i = begin; i < end; i += kGroup, x += kGroup, words += bits) {
    __m512 factors[2];
    if (blocks.Uniform(i)) {
      factors[0] = factors[1] = _mm512_set1_ps(blocks.factor());
    } else {
      float each[kGroup];
      blocks.Group(i, each);
      for (int j = 0; j < 2; ++j) factors[j] = _mm512_loadu_ps(each + 16 * j);
    }
    const int64_t at = (i - begin) % kBatch;
    if (kStochastic && at == 0) PhiloxBatch(*job.schedule, i / 4, random);
    __m512i codes[2];
    for (int j = 0; j < 2; ++j) {
      const __m512i v = _mm512_loadu_si512(x + 16 * j);
      const uint32_t* own = random + at + 16 * j;
      const __m512i drawn = kStochastic ? _mm512_load_si512(own) : v;
      codes[j] = Codes<kStochastic>(v, factors[j], drawn, levels);
    }
    for (int32_t from = 0; from < bits; from += 8) {
      const int32_t count = std::min(bits - from, 8);
      __m256i bytes =
          _mm256_set_m128i(_mm512_cvtepi32_epi8(codes[1]), _mm512_cvtepi32_epi8(codes[0]));
      bytes = _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(8 - count));
      for (int32_t p = count - 1; p >= 0; --p) {
        words[from + p] = _mm256_movepi8_mask(bytes);
        bytes = _mm256_add_epi8(bytes, bytes);
      }
      for (__m512i& code : codes) code = _mm512_srli_epi32(code, 8);
    }
  }
}

}  // namespace avx512
GRACE_END
#endif

namespace {

using GroupsFunction = decltype(&generic::Groups<true, 0>);

// The usual widths are compiled for themselves, the others share one.
template <bool kStochastic>
GroupsFunction ChooseGroups(int32_t bits) {
  switch (bits) {
    case 2:
      return GRACE_CHOOSE(Groups<kStochastic, 2>);
    case 4:
      return GRACE_CHOOSE(Groups<kStochastic, 4>);
    case 8:
      return GRACE_CHOOSE(Groups<kStochastic, 8>);
    default:
      return GRACE_CHOOSE(Groups<kStochastic, 0>);
  }
}

// The last, incomplete group: as a whole one from a padded copy, then without the padding's bits.
void LastGroup(const Job& job, GroupsFunction groups, int64_t begin,
               const float* x, uint32_t* words) {
  const int64_t rest = job.n - begin;
  float padded[kGroup] = {};
  std::copy(x, x + rest, padded);
  groups(job, begin, begin + kGroup, padded, words);
  for (int32_t p = 0; p < job.quantization.bits; ++p) words[p] &= GroupMask(rest);
}

}  // namespace

void Quantize(const Executor& executor, const float* x, const float* scales, int64_t n,
              const Quantization& quantization, const PhiloxKey* key, uint32_t* words) {
  const GroupsFunction groups =
      key ? ChooseGroups<true>(quantization.bits) : ChooseGroups<false>(quantization.bits);
  const PhiloxSchedule schedule(key ? *key : PhiloxKey{});
  const Job job{scales, n, quantization, &schedule};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t whole = begin + (end - begin) / kGroup * kGroup;
    const DenormalsAreZero scope;
    uint32_t* own = words + PackedWords(begin, quantization.bits);
    groups(job, begin, whole, x + begin, own);
    own += PackedWords(whole - begin, quantization.bits);
    if (whole < end) LastGroup(job, groups, whole, x + whole, own);
  });
}

}  // namespace grace
