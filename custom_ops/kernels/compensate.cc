#include "compensate.h"

#include <cstring>

#include "each_isa.h"
#include "words.h"

namespace grace {

GRACE_LOOP uint32_t IsBad(float x) { return (BitsOf(x) & kInfinity) == kInfinity; }

// acc null: nothing is computed and only x is looked at.
GRACE_LOOP bool CompensateLoop(const float* __restrict x, const float* __restrict residual,
                               float multiplier, int64_t count, float* __restrict acc) {
  uint32_t bad = 0;
  if (!acc) {
    for (int64_t i = 0; i < count; ++i) bad |= IsBad(x[i]);
  } else if (!residual) {
    for (int64_t i = 0; i < count; ++i) {
      acc[i] = x[i] * multiplier;
      bad |= IsBad(acc[i]);
    }
  } else if (multiplier == 1.0f) {
    for (int64_t i = 0; i < count; ++i) {
      acc[i] = x[i] + residual[i];
      bad |= IsBad(acc[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const float product = x[i] * multiplier;
      acc[i] = product + residual[i];
      bad |= IsBad(acc[i]);
    }
  }
  return bad == 0;
}

GRACE_EACH_ISA(static bool Run(const float* x, const float* residual, float multiplier,
                               int64_t count, float* acc) {
  return CompensateLoop(x, residual, multiplier, count, acc);
})

Compensate ChooseCompensate() { return GRACE_CHOOSE(Run); }

ListLoop LoopOver(const std::vector<Source>& sources) {
  std::vector<int64_t> lengths;
  for (const Source& source : sources) lengths.push_back(source.n);
  return ListLoop(lengths);
}

bool TooLargeToCache(int64_t elements) { return elements >= int64_t{1} << 21; }

// Copies whole lines of 64 bytes past the caches. Returns how many bytes.
namespace generic {
static int64_t CopyPast(const char*, int64_t, char*) { return 0; }
}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {
static int64_t CopyPast(const char* from, int64_t bytes, char* to) {
  int64_t done = 0;
  for (; done + 64 <= bytes; done += 64) {
    for (int64_t i = done; i < done + 64; i += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    }
  }
  return done;
}
}  // namespace avx2
GRACE_END
GRACE_BEGIN_AVX512
namespace avx512 {
static int64_t CopyPast(const char* from, int64_t bytes, char* to) {
  int64_t done = 0;
  for (; done + 64 <= bytes; done += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + done), _mm512_loadu_si512(from + done));
  }
  return done;
}
}  // namespace avx512
GRACE_END
#endif

void Store(const void* from, int64_t bytes, bool bypass, void* to) {
  const auto copy_past = GRACE_CHOOSE(CopyPast);
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  int64_t done = 0;
  if (bypass && reinterpret_cast<uintptr_t>(to) % 64 == 0) done = copy_past(source, bytes, target);
  std::memcpy(target + done, source + done, bytes - done);
}

void EndStores(bool bypass) {
#if defined(__x86_64__)
  if (bypass) _mm_sfence();
#else
  (void)bypass;
#endif
}

}  // namespace grace
