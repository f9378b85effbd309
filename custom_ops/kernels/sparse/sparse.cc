#include "kernels/sparse/sparse.h"

#include <algorithm>
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

namespace {

int64_t Used(const int32_t* counts, int64_t worker, int64_t k) {
  return counts ? std::clamp<int64_t>(counts[worker], 0, k) : k;
}

bool Ascending(const int32_t* indices, int64_t count) {
  bool ascending = true;
  for (int64_t i = 1; i < count; ++i) ascending &= indices[i - 1] < indices[i];
  return ascending;
}

}  // namespace

Scatter ScatterSum(const Executor& executor, const float* values, const int32_t* indices,
                   const int32_t* counts, int64_t workers, int64_t k, int64_t n, float* out) {
  for (int64_t w = 0; w < workers; ++w) {
    const int32_t* own = indices + w * k;
    const int64_t count = Used(counts, w, k);
    if (count == 0) continue;
    if (!Ascending(own, count)) {
      const bool inside = std::all_of(own, own + count, [n](int32_t i) { return i >= 0 && i < n; });
      return inside ? Scatter::kUnordered : Scatter::kOutside;
    }
    if (own[0] < 0 || own[count - 1] >= n) return Scatter::kOutside;
  }
  executor.For(n, kGrain, [=](int64_t begin, int64_t end) {
    std::fill(out + begin, out + end, 0.0f);
    for (int64_t w = 0; w < workers; ++w) {
      const int32_t* own = indices + w * k;
      const float* value = values + w * k;
      const int64_t count = Used(counts, w, k);
      for (int64_t i = std::lower_bound(own, own + count, begin) - own; i < count && own[i] < end;
           ++i) {
        out[own[i]] = Flush(out[own[i]] + Flush(value[i]));
      }
    }
  });
  return Scatter::kDone;
}

}  // namespace grace
