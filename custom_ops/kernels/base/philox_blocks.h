// Philox for a batch of elements, to be inlined into other kernels: `PhiloxBatch` and `CoarseBatch`
// in the namespace of each instruction set.
#pragma once

#include <cstdint>

#include "kernels/base/philox.h"

namespace grace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr int kPhiloxRounds = 10;
constexpr int kStartRounds = 3;  // the rounds that PhiloxStart computes in part
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

// What the first three rounds have in common in all blocks with the same upper counter word. Such
// blocks differ in the first word only. After one round only the third and the fourth word differ,
// after two rounds only the first three.
struct PhiloxStart {
  PhiloxStart(const PhiloxSchedule& schedule, uint64_t block) {
    const uint64_t p1 = uint64_t{kPhiloxM1} * schedule.step;
    const uint32_t a1 = static_cast<uint32_t>((p1 >> 32) ^ (block >> 32) ^ schedule.k0[0]);
    const uint64_t p0 = uint64_t{kPhiloxM0} * a1;
    c1 = schedule.variable_draw ^ schedule.k1[0];
    a2 = static_cast<uint32_t>(p1) ^ schedule.k0[1];
    c2 = (p0 >> 32) ^ schedule.k1[1];
    c3 = static_cast<uint32_t>(p0) ^ schedule.k1[2];
  }
  // c1 becomes a part of the third word of round 1, a2 and c2 of the first and the third word of
  // round 2, c3 of the third word of round 3.
  uint64_t c1, a2, c2, c3;
};

// Computes the words of a batch of blocks in which the upper word of the counter changes.
void PhiloxAcross(const PhiloxSchedule& schedule, uint64_t block, uint32_t* words);

}  // namespace grace

#define GRACE_KERNEL "kernels/base/philox-inl.h"
#include "kernels/base/each_isa.h"
