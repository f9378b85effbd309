#include <algorithm>

#include "block_factors.h"
#include "dispatch.h"
#include "quantize.h"
#include "words.h"

namespace grace {
namespace {

using Units = BlockFactors<Unit>;

// What becomes of a decoded value: it is the result, or it is added to 0 or to the result so far.
enum class Into { kPlain, kZero, kSum };

struct Row {
  const float* scales;
  int64_t n;
  Quantization quantization;
};

}  // namespace

namespace generic {

// Spreads the eight bits of a byte over eight bytes.
static inline uint64_t ByteOfEachBit(uint32_t byte) {
  const uint64_t own = (byte * 0x0101010101010101u) & 0x8040201008040201u;
  return (own + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}

static void Codes(const uint32_t* words, int32_t bits, int32_t* codes) {
  std::fill(codes, codes + kGroup, 0);
  for (int32_t from = 0; from < bits; from += 8) {
    for (int i = 0; i < 4; ++i) {
      uint64_t bytes = 0;
      for (int32_t p = from; p < std::min(bits, from + 8); ++p) {
        bytes |= ByteOfEachBit(words[p] >> (8 * i) & 0xff) << (p - from);
      }
      for (int j = 0; j < 8; ++j) {
        codes[8 * i + j] |= static_cast<int32_t>(bytes >> (8 * j) & 0xff) << from;
      }
    }
  }
}

template <Into kInto>
static void Groups(const Row& row, int64_t begin, int64_t end, const uint32_t* words, float* out) {
  const Quantization& q = row.quantization;
  Units blocks(row.scales, row.n, q.block, q.levels, begin);
  for (int64_t g = begin; g < end; g += kGroup, words += q.bits, out += kGroup) {
    float units[kGroup];
    int32_t codes[kGroup];
    blocks.Group(g, units);
    Codes(words, q.bits, codes);
    for (int i = 0; i < kGroup; ++i) {
      const int32_t level = std::min(codes[i], 2 * q.levels) - q.levels;
      const float value = static_cast<float>(level) * units[i];
      if (kInto == Into::kPlain) out[i] = value;
      if (kInto == Into::kZero) out[i] = Flush(0.0f + value);
      if (kInto == Into::kSum) out[i] = Flush(out[i] + value);
    }
  }
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

// Bit p of the bytes is the 32 bits of words[p], for up to eight words.
static inline __m256i Bytes(const uint32_t* words, int32_t count) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                            0x0303030303030303);
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  __m256i bytes = _mm256_setzero_si256();
  for (int32_t p = count - 1; p >= 0; --p) {
    const __m256i word = _mm256_shuffle_epi8(_mm256_set1_epi32(words[p]), spread);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(word, own), own);
    bytes = _mm256_sub_epi8(_mm256_add_epi8(bytes, bytes), set);
  }
  return bytes;
}

template <Into kInto>
static inline void Put(__m256 value, float* out) {
  if (kInto != Into::kPlain) {
    const __m256 before = kInto == Into::kZero ? _mm256_setzero_ps() : _mm256_loadu_ps(out);
    value = _mm256_add_ps(before, value);
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(kMagnitude));
    const __m256i normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kSmallestNormal - 1));
    value = _mm256_and_ps(value, _mm256_castsi256_ps(normal));
  }
  _mm256_storeu_ps(out, value);
}

template <Into kInto>
static void Groups(const Row& row, int64_t begin, int64_t end, const uint32_t* words, float* out) {
  const Quantization& q = row.quantization;
  Units blocks(row.scales, row.n, q.block, q.levels, begin);
  const __m256i levels = _mm256_set1_epi32(q.levels), top = _mm256_set1_epi32(2 * q.levels);
  for (int64_t g = begin; g < end; g += kGroup, words += q.bits, out += kGroup) {
    alignas(32) float units[kGroup];
    const bool uniform = blocks.Uniform(g);
    if (!uniform) blocks.Group(g, units);
    const __m256 one_unit = _mm256_set1_ps(blocks.factor());
    alignas(32) uint8_t low[kGroup], high[kGroup];
    _mm256_store_si256(reinterpret_cast<__m256i*>(low), Bytes(words, std::min(q.bits, 8)));
    if (q.bits > 8) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(high), Bytes(words + 8, q.bits - 8));
    }
    for (int i = 0; i < kGroup; i += 8) {
      __m256i code =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low + i)));
      if (q.bits > 8) {
        const __m256i upper =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(high + i)));
        code = _mm256_or_si256(code, _mm256_slli_epi32(upper, 8));
      }
      const __m256i level = _mm256_sub_epi32(_mm256_min_epi32(code, top), levels);
      const __m256 unit = uniform ? one_unit : _mm256_load_ps(units + i);
      Put<kInto>(_mm256_mul_ps(_mm256_cvtepi32_ps(level), unit), out + i);
    }
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

template <Into kInto>
static inline void Put(__m512 value, float* out) {
  if (kInto != Into::kPlain) {
    const __m512 before = kInto == Into::kZero ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
    value = _mm512_add_ps(before, value);
    const __mmask16 normal = _mm512_test_epi32_mask(_mm512_castps_si512(value),
                                                    _mm512_set1_epi32(kInfinity));
    value = _mm512_maskz_mov_ps(normal, value);
  }
  _mm512_storeu_ps(out, value);
}

template <Into kInto>
static void Groups(const Row& row, int64_t begin, int64_t end, const uint32_t* words, float* out) {
  const Quantization& q = row.quantization;
  Units blocks(row.scales, row.n, q.block, q.levels, begin);
  const __m512i levels = _mm512_set1_epi16(static_cast<int16_t>(q.levels));
  const __m512i top = _mm512_set1_epi16(static_cast<int16_t>(2 * q.levels));
  for (int64_t g = begin; g < end; g += kGroup, words += q.bits, out += kGroup) {
    alignas(64) float units[kGroup];
    const bool uniform = blocks.Uniform(g);
    if (!uniform) blocks.Group(g, units);
    const __m512 one_unit = _mm512_set1_ps(blocks.factor());
    __m512i codes = _mm512_setzero_si512();
    for (int32_t p = q.bits - 1; p >= 0; --p) {
      // Twice the code so far, plus the next lower bit: a set lane of the mask is -1.
      codes = _mm512_sub_epi16(_mm512_add_epi16(codes, codes), _mm512_movm_epi16(words[p]));
    }
    codes = _mm512_sub_epi16(_mm512_min_epu16(codes, top), levels);
    const __m256i halves[2] = {_mm512_castsi512_si256(codes),
                               _mm512_extracti64x4_epi64(codes, 1)};
    for (int i = 0; i < 2; ++i) {
      const __m512 level = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(halves[i]));
      const __m512 unit = uniform ? one_unit : _mm512_load_ps(units + 16 * i);
      Put<kInto>(_mm512_mul_ps(level, unit), out + 16 * i);
    }
  }
}

}  // namespace avx512
GRACE_END
#endif

namespace {

using Decode = decltype(&generic::Groups<Into::kPlain>);

// Elements [begin, end) of one worker, the last group perhaps incomplete.
void DecodeRange(Decode decode, const Row& row, int64_t begin, int64_t end, const uint32_t* words,
                 float* out) {
  const int64_t whole = begin + (end - begin) / kGroup * kGroup;
  words += PackedWords(begin, row.quantization.bits);
  decode(row, begin, whole, words, out);
  if (whole == end) return;
  float last[kGroup] = {};
  float* rest = out + (whole - begin);
  std::copy(rest, rest + (end - whole), last);
  decode(row, whole, whole + kGroup, words + PackedWords(whole - begin, row.quantization.bits),
         last);
  std::copy(last, last + (end - whole), rest);
}

}  // namespace

void Dequantize(const Executor& executor, const uint32_t* words, const float* scales, int64_t n,
                const Quantization& quantization, float* out) {
  const Decode decode = GRACE_CHOOSE(Groups<Into::kPlain>);
  const Row row{scales, n, quantization};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    DecodeRange(decode, row, begin, end, words, out + begin);
  });
}

void DequantizeSum(const Executor& executor, const uint32_t* words, const float* scales,
                   int64_t workers, int64_t n, const Quantization& quantization, float* out) {
  const Decode first = GRACE_CHOOSE(Groups<Into::kZero>);
  const Decode next = GRACE_CHOOSE(Groups<Into::kSum>);
  const int64_t row_words = PackedWords(n, quantization.bits);
  const int64_t blocks = CeilDiv(n, quantization.block);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    if (workers == 0) std::fill(out + begin, out + end, 0.0f);
    // A stretch that stays in the first-level cache while all workers are added to it.
    constexpr int64_t kStretch = 4096;
    for (int64_t i = begin; i < end; i += kStretch) {
      const int64_t until = std::min(end, i + kStretch);
      for (int64_t w = 0; w < workers; ++w) {
        const Row row{scales + w * blocks, n, quantization};
        DecodeRange(w ? next : first, row, i, until, words + w * row_words, out + i);
      }
    }
  });
}

}  // namespace grace
