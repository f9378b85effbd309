// Philox on the device: the words of philox.h.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"
#include "kernels/base/philox.h"

namespace grace {

struct PhiloxWords {
  uint32_t words[4];
};

// The words of elements 4 * block to 4 * block + 3 of the key's stream.
__device__ inline PhiloxWords PhiloxBlock(const PhiloxKey& key, uint64_t block) {
  uint32_t a = static_cast<uint32_t>(block), b = static_cast<uint32_t>(block >> 32);
  uint32_t c = key.step, d = key.variable_draw, k0 = key.seed, k1 = key.worker;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, a), low0 = 0xD2511F53u * a;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ k0;
    b = low1;
    c = high0 ^ d ^ k1;
    d = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// The words of a piece that begins at element `begin`, as LoadPiece has its elements. Every thread
// of the block must call it. A lane draws eight words in a row and gives them to others through
// shared memory, so that no block is drawn twice.
__device__ inline void DrawPiece(const PhiloxKey& key, int64_t begin, uint32_t* words) {
  __shared__ uint32_t drawn[kThreads / kWarp][kEach * kWarp];
  uint32_t* const own = drawn[WarpOf()];
  const uint64_t first = static_cast<uint64_t>(begin + WarpOf() * kEach * kWarp) / 4;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach / 4; ++i) {
    const PhiloxWords block = PhiloxBlock(key, first + i * kWarp + Lane());
#pragma unroll
    for (int j = 0; j < 4; ++j) own[4 * (i * kWarp + Lane()) + j] = block.words[j];
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kEach; ++j) words[j] = own[j * kWarp + Lane()];
}

// Likewise coarse words; the piece begins a group. A lane draws one block.
__device__ inline void DrawCoarsePiece(const PhiloxKey& key, int64_t begin, uint32_t* words) {
  constexpr int kHalf = kWarp / 2;
  static_assert(kEach * kHalf == 4 * kWarp);
  __shared__ uint32_t drawn[kThreads / kWarp][4 * kWarp];
  uint32_t* const own = drawn[WarpOf()];
  __syncwarp();
  const PhiloxWords block =
      PhiloxBlock(key, static_cast<uint64_t>(begin + WarpOf() * kEach * kWarp) / 8 + Lane());
#pragma unroll
  for (int j = 0; j < 4; ++j) own[4 * Lane() + j] = block.words[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t word = own[j * kHalf + Lane() % kHalf];
    words[j] = (Lane() < kHalf ? word << 16 : word & 0xffff0000u) | 0x8000u;
  }
}

}  // namespace grace
