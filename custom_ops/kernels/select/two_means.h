// The elements that reach furthest to either side of zero, and one mean for each side.
//
// Of an acc with P positive and N negative elements, a denormal counting as neither, k elements
// are sent, or all P + N if they are fewer: floor(k P / (P + N) + 1/2) of the positive ones and the
// rest of the negative ones, so that the same share of each side is sent. They are the largest of
// their side, of equal ones those of lower index. Each decodes to the mean of the sent elements of
// its side: the sum over the entries in order of index, with 0 for those of the other side, added
// over adjacent pairs, then pairs of pairs, in double precision, divided by the number of the
// side's entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"

namespace grace {

// The payload of a list: the parts of its tensors one after another.
struct TwoMeans {
  std::vector<int64_t> ks;  // from 1 to the number of elements
  float* means;             // the mean of the positive side, then that of the negative one; or 0
  uint32_t* signs;          // PackedWords(ks[i], 1) for tensor i: bit j is set where entry j is > 0
  int32_t* indices;         // ks[i] for tensor i, ascending; the entries from counts[i] on are 0
  int32_t* counts;
};

// Encodes each acc = x * multiplier + residual; residual_out gets acc minus its decoded value.
// Returns whether every acc is finite.
bool TwoMeansList(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const TwoMeans& sent);

// The values of the entries that some workers sent: `means` is [workers][2 * tensors], `signs`
// [workers][their words], and values [workers][sum of ks].
void ExpandMeans(const Executor& executor, const float* means, const uint32_t* signs,
                 int64_t workers, const std::vector<int64_t>& ks, float* values);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// The arguments from `means` to `counts` are the members of TwoMeans.
extern "C" {

int grace_cuda_expand_means(const float* means, const uint32_t* signs, int64_t workers,
                            const int64_t* ks, int64_t count, float* values, void* workspace,
                            size_t* bytes, void* stream);
int grace_cuda_two_means_list(const grace::EncodeInput* sources, int64_t count, float multiplier,
                              const int64_t* ks, float* means, uint32_t* signs, int32_t* indices,
                              int32_t* counts, bool* finite, void* workspace, size_t* bytes,
                              void* stream);

}  // extern "C"
