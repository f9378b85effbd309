#include "signs.h"

#include <algorithm>

#include "dispatch.h"
#include "words.h"

namespace grace {
namespace generic {

static uint32_t PackGroup(const float* x, int64_t count) {
  uint32_t word = 0;
  for (int64_t i = 0; i < count; ++i) {
    word |= static_cast<uint32_t>(NotNegative(BitsOf(x[i]))) << i;
  }
  return word;
}

static void Pack(const float* x, int64_t groups, uint32_t* words) {
  for (int64_t g = 0; g < groups; ++g) words[g] = PackGroup(x + kGroup * g, kGroup);
}

// Writes 0 where the tie bit is 1, else +1 or -1 by the positive bit.
static void ExpandGroup(uint32_t positive, uint32_t tie, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t one = 0x3f800000u | (~positive >> i << 31);
    out[i] = FloatOf(one & ((tie >> i & 1) - 1u));
  }
}

static void Expand(const uint32_t* positive, const uint32_t* tie, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g) {
    ExpandGroup(positive[g], tie ? tie[g] : 0, kGroup, out + kGroup * g);
  }
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

static void Pack(const float* x, int64_t groups, uint32_t* words) {
  const __m256i infinity = _mm256_set1_epi32(kInfinity), minus_zero = _mm256_set1_epi32(kSignBit);
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t negative = 0;
    for (int i = 0; i < 4; ++i) {
      const __m256i v =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + kGroup * g + 8 * i));
      const __m256i below = _mm256_andnot_si256(_mm256_cmpeq_epi32(v, minus_zero), v);
      const __m256i bad = _mm256_or_si256(_mm256_cmpgt_epi32(v, infinity), below);
      negative |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(bad))) << (8 * i);
    }
    words[g] = ~negative;
  }
}

static void Expand(const uint32_t* positive, const uint32_t* tie, int64_t groups, float* out) {
  const __m256i one = _mm256_set1_epi32(0x3f800000), sign = _mm256_set1_epi32(kSignBit);
  // Shifting bit i of the word to the top makes it a sign bit.
  const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  for (int64_t g = 0; g < groups; ++g) {
    for (int i = 0; i < 4; ++i) {
      const __m256i minus = _mm256_set1_epi32(~positive[g] >> (8 * i));
      __m256i v = _mm256_or_si256(one, _mm256_and_si256(_mm256_sllv_epi32(minus, shifts), sign));
      if (tie) {
        const __m256i ties = _mm256_sllv_epi32(_mm256_set1_epi32(tie[g] >> (8 * i)), shifts);
        v = _mm256_andnot_si256(_mm256_srai_epi32(ties, 31), v);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + kGroup * g + 8 * i), v);
    }
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

static void Pack(const float* x, int64_t groups, uint32_t* words) {
  const __m512i infinity = _mm512_set1_epi32(kInfinity), minus_zero = _mm512_set1_epi32(kSignBit);
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t word = 0;
    for (int i = 0; i < 2; ++i) {
      const __m512i v = _mm512_loadu_si512(x + kGroup * g + 16 * i);
      const __mmask16 good =
          _mm512_cmple_epu32_mask(v, infinity) | _mm512_cmpeq_epi32_mask(v, minus_zero);
      word |= static_cast<uint32_t>(good) << (16 * i);
    }
    words[g] = word;
  }
}

static void Expand(const uint32_t* positive, const uint32_t* tie, int64_t groups, float* out) {
  const __m512 plus = _mm512_set1_ps(1.0f), minus = _mm512_set1_ps(-1.0f);
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t settled = tie ? ~tie[g] : 0xffffffffu;
    for (int i = 0; i < 2; ++i) {
      const __m512 v =
          _mm512_mask_blend_ps(static_cast<__mmask16>(positive[g] >> (16 * i)), minus, plus);
      _mm512_storeu_ps(out + kGroup * g + 16 * i,
                       _mm512_maskz_mov_ps(static_cast<__mmask16>(settled >> (16 * i)), v));
    }
  }
}

}  // namespace avx512
GRACE_END
#endif

void PackSigns(const Executor& executor, const float* x, int64_t n, uint32_t* words) {
  const auto pack = GRACE_CHOOSE(Pack);
  executor.For(n, kGrain, [=](int64_t begin, int64_t end) {
    const int64_t whole = (end - begin) / kGroup, rest = (end - begin) % kGroup;
    pack(x + begin, whole, words + begin / kGroup);
    if (rest) words[begin / kGroup + whole] = generic::PackGroup(x + end - rest, rest);
  });
}

void UnpackSigns(const Executor& executor, const uint32_t* words, int64_t n, float* out) {
  const auto expand = GRACE_CHOOSE(Expand);
  executor.For(n, kGrain, [=](int64_t begin, int64_t end) {
    const int64_t whole = (end - begin) / kGroup, rest = (end - begin) % kGroup;
    expand(words + begin / kGroup, nullptr, whole, out + begin);
    if (rest) generic::ExpandGroup(words[begin / kGroup + whole], 0, rest, out + end - rest);
  });
}

namespace {

// One counter for each bit of some words: plane p holds bit p of the counters, so that adding a
// worker's words is a chain of half adders, each on many words at a time.
class Tally {
 public:
  static constexpr int64_t kWords = 64;

  // `planes` must be enough for the number of words that will be added.
  explicit Tally(int planes) : used_(planes) { std::fill_n(planes_[0], used_ * kWords, 0u); }

  void Add(const uint32_t* words, int64_t count) {
    uint32_t carry[kWords] = {};
    std::copy(words, words + count, carry);
    for (int p = 0; p < used_; ++p) {
      for (int64_t g = 0; g < kWords; ++g) {
        const uint32_t next = planes_[p][g] & carry[g];
        planes_[p][g] ^= carry[g];
        carry[g] = next;
      }
    }
  }

  // Sets the bits of the counters above, and of those equal to, `value`.
  void Compare(uint32_t value, uint32_t* above, uint32_t* equal) const {
    std::fill_n(above, kWords, 0u);
    std::fill_n(equal, kWords, 0xffffffffu);
    for (int p = used_ - 1; p >= 0; --p) {
      const uint32_t bit = (value >> p & 1) ? 0xffffffffu : 0u;
      for (int64_t g = 0; g < kWords; ++g) {
        above[g] |= equal[g] & planes_[p][g] & ~bit;
        equal[g] &= ~(planes_[p][g] ^ bit);
      }
    }
  }

 private:
  static constexpr int kMost = 32;
  int used_;
  uint32_t planes_[kMost][kWords];
};

}  // namespace

void VoteSigns(const Executor& executor, const uint32_t* words, int64_t workers, int64_t n,
               float* out) {
  const auto expand = GRACE_CHOOSE(Expand);
  const int64_t stride = PackedWords(n, 1);
  const uint32_t half = static_cast<uint32_t>(workers / 2);
  int planes = 1;
  while (workers >> planes) ++planes;
  executor.For(n, kGrain / 4, [=](int64_t begin, int64_t end) {
    constexpr int64_t kAtOnce = Tally::kWords * kGroup;
    uint32_t above[Tally::kWords], tie[Tally::kWords];
    for (int64_t i = begin; i < end; i += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - i);
      Tally tally(planes);
      for (int64_t w = 0; w < workers; ++w) {
        tally.Add(words + w * stride + i / kGroup, CeilDiv(count, kGroup));
      }
      tally.Compare(half, above, tie);
      if (workers % 2) std::fill_n(tie, Tally::kWords, 0u);
      const int64_t whole = count / kGroup, rest = count % kGroup;
      expand(above, tie, whole, out + i);
      if (rest) generic::ExpandGroup(above[whole], tie[whole], rest, out + i + kGroup * whole);
    }
  });
}

}  // namespace grace
