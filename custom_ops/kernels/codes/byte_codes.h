// Codes of eight bits, one byte an element: the sign in the top bit, a magnitude below it.
//
// Two kinds of magnitude: the dynamic tree (Dettmers 2015), relative to a scale, and powers of two
// (Horvath et al. 2019), rounded at random.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/base/words.h"

namespace grace {

// Four codes lie in a word, the first in its lowest byte. Bytes beyond the last code are zero.
constexpr int64_t ByteWords(int64_t n) { return CeilDiv(n, 4); }

// The numbers of the dynamic tree. Code 0 is 0. Code c of bit length k + 1 is
// (9 (c + 1) - 8 * 2^k) * units[k], which divides the decade from 10^(k - 7) to 10^(k - 6) into 2^k
// equal steps; 127 is 1. Through the numbers, as places of their codes, goes the minimum of seven
// lines; the slopes are those over four times a number.
struct TreeTable {
  float slopes[7] = {}, starts[7] = {}, units[8] = {};
  constexpr TreeTable() {
    double power = 1, ten = 1e7;  // 2^k and 10^(7 - k), exact
    for (int k = 0; k < 7; ++k, power *= 2, ten /= 10) {
      slopes[k] = static_cast<float>(k ? power * ten / 36 : 0.25e6);
      starts[k] = static_cast<float>(k ? (8 * power - 9) / 9 : 0.0);
      units[k] = static_cast<float>(1 / (power * ten));
    }
  }
};
inline constexpr TreeTable kTree;

// The power of two of code c >= 1 has the exponent c - 127 + kPowerOffset: 2^-94 to 2^32.
constexpr uint32_t kPowerOffset = 32;

// The elements of a block; 0 means the whole tensor. At least 1, because the number of blocks is
// the number of elements divided by it, also for an empty tensor.
inline int64_t BlockOf(int64_t block, int64_t n) { return block ? block : std::max<int64_t>(1, n); }

// Writes of each source the scales of its blocks, the largest |acc|, 0 below 2^-110, and the codes
// nearest to |acc| / scale. A block of 0 is the whole tensor; else it is a multiple of 32.
// residual_out gets acc minus what was sent. Returns whether every acc is finite. words and scales
// are those of all sources, one after another.
bool EncodeTree(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
                int64_t block, uint32_t* words, float* scales);

// Writes of each source the sign and the power of two that |acc| is rounded to, up with the
// probability that its mantissa is, as a fraction of 2^23. Source i draws from keys[i]. The rest is
// as in EncodeTree.
bool EncodePowers(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const std::vector<PhiloxKey>& keys, uint32_t* words);

// The rows of all workers, at least one. `scales` is of the tree alone.
struct ByteRows {
  const uint32_t* words;  // [workers][words of all targets]
  const float* scales;    // [workers][scales of all targets]
  int64_t workers;
};

// total = (the sum of the workers' numbers, from zero, in their order, a denormal sum becoming 0) *
// factor. Any bits are taken. Returns whether every total is finite.
bool DecodeTree(const Executor& executor, const std::vector<DecodeOutput>& targets,
                const ByteRows& rows, int64_t block, float factor);
bool DecodePowers(const Executor& executor, const std::vector<DecodeOutput>& targets,
                  const ByteRows& rows, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_decode_powers(const grace::DecodeOutput* list, int64_t count, grace::ByteRows rows,
                             float factor, bool* finite, void* workspace, size_t* bytes,
                             void* stream);
int grace_cuda_decode_tree(const grace::DecodeOutput* list, int64_t count, grace::ByteRows rows,
                           int64_t block, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);
int grace_cuda_encode_powers(const grace::EncodeInput* list, int64_t count, float multiplier,
                             const grace::PhiloxKey* keys, uint32_t* words, bool* finite,
                             void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_tree(const grace::EncodeInput* list, int64_t count, float multiplier,
                           int64_t block, uint32_t* words, float* scales, bool* finite,
                           void* workspace, size_t* bytes, void* stream);

}  // extern "C"
