#include "kernels/base/philox.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/philox_blocks.h"
#include "kernels/base/words.h"

#define GRACE_KERNEL "kernels/base/random_words-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

// Not inlined, so that the kernels stay short. It runs only in streams of more than 2^34 words.
[[gnu::noinline]] void PhiloxAcross(const PhiloxSchedule& schedule, uint64_t block,
                                    uint32_t* words) {
  for (int i = 0; i < kBatchBlocks; ++i, ++block) {
    uint64_t a = static_cast<uint32_t>(block), b = block >> 32;
    uint64_t c = schedule.step, d = schedule.variable_draw;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t p0 = kPhiloxM0 * a, p1 = kPhiloxM1 * c;
      a = (p1 >> 32) ^ b ^ schedule.k0[round];
      c = (p0 >> 32) ^ d ^ schedule.k1[round];
      b = static_cast<uint32_t>(p1);
      d = static_cast<uint32_t>(p0);
    }
    for (const uint64_t word : {a, b, c, d}) *words++ = static_cast<uint32_t>(word);
  }
}

void RandomWords(const Executor& executor, const PhiloxKey& key, int64_t n, uint32_t* words) {
  const PhiloxSchedule schedule(key);
  const auto fill = GRACE_CHOOSE(RandomBatches);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t whole = (end - begin) / kBatch, rest = (end - begin) % kBatch;
    fill(schedule, begin / 4, whole, words + begin);
    if (rest == 0) return;
    uint32_t last[kBatch];
    fill(schedule, begin / 4 + kBatchBlocks * whole, 1, last);
    std::memcpy(words + end - rest, last, rest * sizeof *last);
  });
}

void Uniform(const Executor& executor, const PhiloxKey& key, int64_t n, float* out) {
  const PhiloxSchedule schedule(key);
  const auto fill = GRACE_CHOOSE(RandomBatches);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAtOnce = 1024;
    uint32_t words[kAtOnce];
    for (int64_t i = begin; i < end; i += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - i);
      fill(schedule, i / 4, CeilDiv(count, kBatch), words);
      for (int64_t j = 0; j < count; ++j) {
        out[i + j] = static_cast<float>(static_cast<int32_t>(words[j] >> 8)) * 0x1p-24f;
      }
    }
  });
}

}  // namespace grace
