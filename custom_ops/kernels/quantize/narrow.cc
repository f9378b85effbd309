#include "kernels/quantize/narrow.h"

#include <algorithm>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/philox_blocks.h"
#include "kernels/base/words.h"

namespace grace {
namespace {

uint16_t RoundedHalf(uint32_t bits, uint32_t random) {
  const uint32_t rounded = bits + (random >> 16);
  return ((rounded & kMagnitude) < kInfinity ? rounded : bits) >> 16;
}

}  // namespace
}  // namespace grace

#define GRACE_KERNEL "kernels/quantize/narrow-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

void ToHalvesList(const Executor& executor, const std::vector<Narrowed>& list,
                  const PhiloxKey& key) {
  const auto round = GRACE_CHOOSE(RoundHalves);
  const ListLoop loop = LoopOver(list);
  const bool bypass = TooLargeToCache(loop.total());
  loop.For(executor, CutAt{kCoarseBatch}, [&](size_t t, int64_t first, int64_t last) {
    alignas(64) uint16_t buffer[kChunk];
    PhiloxKey own = key;
    own.variable_draw = list[t].variable_draw;
    const PhiloxSchedule schedule(own);
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      round(schedule, begin, count, list[t].x + begin, buffer);
      Store(buffer, 2 * count, bypass, list[t].halves + begin);
    }
    EndStores(bypass);
  });
}

void FromHalvesList(const Executor& executor, const std::vector<Widened>& list) {
  const auto widen = GRACE_CHOOSE(WidenHalves);
  const ListLoop loop = LoopOver(list);
  const bool bypass = TooLargeToCache(loop.total());
  loop.For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    alignas(64) float buffer[kChunk];
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      widen(list[t].halves + begin, count, buffer);
      Store(buffer, 4 * count, bypass, list[t].x + begin);
    }
    EndStores(bypass);
  });
}

}  // namespace grace
