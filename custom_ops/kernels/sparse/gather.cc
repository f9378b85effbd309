#include "kernels/sparse/gather.h"

#include <atomic>

#include "kernels/base/words.h"

namespace grace {

bool Gather(const Executor& executor, const float* x, int64_t n, const int32_t* indices, int64_t k,
            float* values) {
  std::atomic<bool> inside{true};
  executor.For(k, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (indices[i] < 0 || indices[i] >= n) {
        inside = false;
        return;
      }
      values[i] = x[indices[i]];
    }
  });
  return inside;
}

}  // namespace grace
