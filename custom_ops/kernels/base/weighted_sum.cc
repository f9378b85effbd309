#include "kernels/base/weighted_sum.h"

#include <algorithm>

#include "kernels/base/compensate.h"
#include "kernels/base/dispatch.h"

namespace grace {

void MixList(const Executor& executor, const std::vector<Mixed>& list, float a, float b) {
  const ListLoop loop = LoopOver(list);
  const Compensate compensate = ChooseCompensate();
  const bool bypass = TooLargeToCache(loop.total());
  loop.For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    alignas(64) float buffer[kChunk];
    const Mixed& own = list[t];
    const bool past = bypass && own.out != own.x;  // lines of x are in the caches already
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      compensate(own.y + begin, nullptr, b, count, buffer);
      compensate(own.x + begin, buffer, a, count, buffer);
      Store(buffer, 4 * count, past, own.out + begin);
    }
    EndStores(past);
  });
}

}  // namespace grace
