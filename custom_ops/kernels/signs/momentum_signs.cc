#include "kernels/signs/momentum_signs.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "kernels/signs/signs.h"

#define GRACE_KERNEL "kernels/signs/momentum_signs-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

bool MomentumSignList(const Executor& executor, const std::vector<EncodeInput>& sources,
                      float multiplier, const Momentum& momentum,
                      const std::vector<uint32_t*>& words) {
  const auto average = GRACE_CHOOSE(Average);
  const ListLoop loop = LoopOver(sources);
  const bool large = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{kChunk}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    alignas(64) float room[kChunk];
    const EncodeInput& own = sources[i];
    const bool bypass = large && own.residual_out != own.x;  // lines of x are in the caches already
    bool finite = true;
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      finite &=
          average(own.x + at, own.residual + at, multiplier, momentum.beta, momentum.rest, n, room);
      PackSigns(Serial(), room, n, words[i] + at / kGroup);
      Store(room, 4 * n, bypass, own.residual_out + at);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

}  // namespace grace
