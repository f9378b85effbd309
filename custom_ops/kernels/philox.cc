#include "philox.h"

#include <algorithm>
#include <cstring>

#include "philox_blocks.h"
#include "words.h"

namespace grace {
namespace generic {

// The words of `groups` whole groups from group `first` on.
static void Words(const PhiloxSchedule& schedule, uint64_t first, int64_t groups, uint32_t* out) {
  for (int64_t g = 0; g < groups; ++g) PhiloxGroup(schedule, first + g, out + kGroup * g);
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

static void Words(const PhiloxSchedule& schedule, uint64_t first, int64_t groups, uint32_t* out) {
  for (int64_t g = 0; g < groups; ++g) {
    __m256i words[4];
    PhiloxGroup(schedule, first + g, words);
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + kGroup * g + 8 * i), words[i]);
    }
  }
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

static void Words(const PhiloxSchedule& schedule, uint64_t first, int64_t groups, uint32_t* out) {
  for (int64_t g = 0; g < groups; ++g) {
    __m512i words[2];
    PhiloxGroup(schedule, first + g, words);
    _mm512_storeu_si512(out + kGroup * g, words[0]);
    _mm512_storeu_si512(out + kGroup * g + 16, words[1]);
  }
}

}  // namespace avx512
GRACE_END
#endif

void RandomWords(const Executor& executor, const PhiloxKey& key, int64_t n, uint32_t* words) {
  const PhiloxSchedule schedule(key);
  const auto fill = GRACE_CHOOSE(Words);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t whole = (end - begin) / kGroup, rest = (end - begin) % kGroup;
    fill(schedule, begin / kGroup, whole, words + begin);
    if (rest == 0) return;
    uint32_t last[kGroup];
    fill(schedule, begin / kGroup + whole, 1, last);
    std::memcpy(words + end - rest, last, rest * sizeof *last);
  });
}

void Uniform(const Executor& executor, const PhiloxKey& key, int64_t n, float* out) {
  const PhiloxSchedule schedule(key);
  const auto fill = GRACE_CHOOSE(Words);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAtOnce = 1024;
    uint32_t words[kAtOnce];
    for (int64_t i = begin; i < end; i += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - i);
      fill(schedule, i / kGroup, CeilDiv(count, kGroup), words);
      for (int64_t j = 0; j < count; ++j) {
        out[i + j] = static_cast<float>(static_cast<int32_t>(words[j] >> 8)) * 0x1p-24f;
      }
    }
  });
}

}  // namespace grace
