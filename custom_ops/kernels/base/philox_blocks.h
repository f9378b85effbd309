// Philox for a batch of elements, to be inlined into other kernels: `PhiloxBatch` and `CoarseBatch`
// in the namespace of each instruction set.
#pragma once

#include <cstdint>

#include "kernels/base/philox.h"

namespace grace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr int kPhiloxRounds = 10;
constexpr int kBatch = 128;
constexpr int kBatchBlocks = kBatch / 4;
// The elements of a batch of coarse words, which are made of as many words as a batch has.
constexpr int kCoarseBatch = 2 * kBatch;

// The round keys of a stream, and the counter words that stay the same over it.
struct PhiloxSchedule {
  explicit PhiloxSchedule(const PhiloxKey& key) : step(key.step), variable_draw(key.variable_draw) {
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      k0[round] = static_cast<uint32_t>(key.seed + round * 0x9E3779B9u);
      k1[round] = static_cast<uint32_t>(key.worker + round * 0xBB67AE85u);
    }
  }
  uint64_t k0[kPhiloxRounds];
  uint64_t k1[kPhiloxRounds];
  uint32_t step;
  uint32_t variable_draw;
};

}  // namespace grace

#define GRACE_KERNEL "kernels/base/philox-inl.h"
#include "kernels/base/each_isa.h"
