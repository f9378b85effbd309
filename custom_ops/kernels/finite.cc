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

bool AllFinite(const Executor& executor, const std::vector<Floats>& list) {
  const auto finite = GRACE_CHOOSE(Finite);
  std::atomic<bool> all{true};
  ListLoop(list).For(executor, CutAt{1}, [&](size_t i, int64_t begin, int64_t end) {
    if (!all.load(std::memory_order_relaxed)) return;
    if (!finite(list[i].data + begin, end - begin)) all = false;
  });
  return all;
}

bool AllFinite(const Executor& executor, const float* x, int64_t n) {
  return AllFinite(executor, {{x, n}});
}

}  // namespace grace
