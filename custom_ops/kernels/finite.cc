#include "finite.h"

#include <atomic>

#include "dispatch.h"
#include "words.h"

namespace grace {

// The compiler vectorises this loop by itself; it has to be seen once per instruction set.
#define GRACE_FINITE_LOOP(x, n)                          \
  uint32_t bad = 0;                                      \
  for (int64_t i = 0; i < (n); ++i) {                    \
    bad |= (BitsOf((x)[i]) & kInfinity) == kInfinity;    \
  }                                                      \
  return bad == 0

namespace generic {
static bool Finite(const float* x, int64_t n) { GRACE_FINITE_LOOP(x, n); }
}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {
static bool Finite(const float* x, int64_t n) { GRACE_FINITE_LOOP(x, n); }
}  // namespace avx2
GRACE_END
GRACE_BEGIN_AVX512
namespace avx512 {
static bool Finite(const float* x, int64_t n) { GRACE_FINITE_LOOP(x, n); }
}  // namespace avx512
GRACE_END
#endif

bool AllFinite(const Executor& executor, const float* x, int64_t n) {
  const auto finite = GRACE_CHOOSE(Finite);
  std::atomic<bool> all{true};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    if (all.load(std::memory_order_relaxed) && !finite(x + begin, end - begin)) all = false;
  });
  return all;
}

}  // namespace grace
