#include "kernels/base/finite.h"

#include <atomic>

#define GRACE_KERNEL "kernels/base/finite-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

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
