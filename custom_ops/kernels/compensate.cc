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

void Store(const float* from, int64_t n, bool bypass, float* to) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (bypass && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    for (; done + 16 <= n; done += 16) {
      for (int64_t i = 0; i < 16; i += 4) _mm_stream_ps(to + done + i, _mm_loadu_ps(from + done + i));
    }
  }
#else
  (void)bypass;
#endif
  std::memcpy(to + done, from + done, (n - done) * sizeof *to);
}

void EndStores(bool bypass) {
#if defined(__x86_64__)
  if (bypass) _mm_sfence();
#else
  (void)bypass;
#endif
}

}  // namespace grace
