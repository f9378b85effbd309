#include "momentum_signs.h"

#include <algorithm>
#include <atomic>

#include "list.h"
#include "signs.h"
#include "words.h"

#define GRACE_KERNEL "each/momentum_signs.h"
#include "each_isa.h"

namespace grace {

bool MomentumSignList(const Executor& executor, const std::vector<Source>& sources,
                      float multiplier, const Momentum& momentum,
                      const std::vector<uint32_t*>& words) {
  const auto average = GRACE_CHOOSE(Average);
  const ListLoop loop = LoopOver(sources);
  const bool large = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{kChunk}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    alignas(64) float room[kChunk];
    const Source& own = sources[i];
    const bool bypass = large && own.kept != own.x;  // lines of x are in the caches already
    bool finite = true;
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      finite &= average(own.x + at, own.residual + at, multiplier, momentum.beta, momentum.rest, n,
                        room);
      PackSigns(Serial(), room, n, words[i] + at / kGroup);
      Store(room, 4 * n, bypass, own.kept + at);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

}  // namespace grace
