// Random subsets of the elements of a tensor, drawn without replacement.
//
// The n numbers below n are permuted under the key of a Philox stream, and the subset is what the
// numbers 0 to k - 1 become. With b = ceil(sqrt(n)) and a = ceil(n / b), a number is a pair (L, R),
// L * b + R, L < a, R < b. A permutation of the a * b pairs is a Feistel network of kRounds rounds,
// or of kRoundsOfFew where n < 256: the rounds take turns in
//     L = (L + f(R)) mod a        R = (R + f(L)) mod b
// each with an f of its own, a table of Philox words: f(j) = floor(word[j] * a / 2^32), or b. The
// tables lie one after another in the stream: b words, a words, b words, and so on. A pair that is
// not below n is permuted again until it is.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/base/words.h"

namespace grace {

// The numbers of pairs and of rounds.
struct Pairs {
  explicit Pairs(int64_t n)
      : b(n > 0 ? static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(n)))) : 1),
        a(CeilDiv(n, b)),
        rounds(n < 256 ? kRoundsOfFew : kRounds) {}

  static constexpr int64_t kRounds = 6, kRoundsOfFew = 12;
  int64_t b, a, rounds;
};

// Writes k distinct numbers from [0, n), ascending; every one is as likely as any other, and so is
// every pair. 1 <= k <= n < 2^31.
void RandomIndices(const Executor& executor, const PhiloxKey& key, int64_t n, int64_t k,
                   int32_t* indices);

// keys[i] and ks[i] belong to tensor i: values gets acc = x * multiplier + residual at its
// RandomIndices, one tensor after another; residual_out gets acc minus what was sent. Returns
// whether every acc is finite.
bool RandomKList(const Executor& executor, const std::vector<EncodeInput>& sources,
                 float multiplier, const std::vector<PhiloxKey>& keys,
                 const std::vector<int64_t>& ks, float* values);

// Decodes the values of RandomKList, of one worker or summed over several, times factor. The values
// of tensor i are multiplied by scales[i] first, where there are scales. Returns whether every
// total is finite.
bool ScatterRandomList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                       const std::vector<PhiloxKey>& keys, const std::vector<int64_t>& ks,
                       const std::vector<float>& scales, const float* values, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `key`, `keys` and `scales`, null where there are none, are the host's.
extern "C" {

int grace_cuda_random_indices(const grace::PhiloxKey* key, int64_t n, int64_t k, int32_t* indices,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_random_k_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                             const grace::PhiloxKey* keys, const int64_t* ks, float* values,
                             bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_random_list(const grace::DecodeOutput* list, int64_t count,
                                   const grace::PhiloxKey* keys, const int64_t* ks,
                                   const float* scales, const float* values, float factor,
                                   bool* finite, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
