// Sets of indices in few bits.
//
// A set of at most k of the numbers below n is written in a fixed number of words, as a code of
// Elias and Fano. With l the largest number of bits for which k * 2^l <= n, entry i of the
// ascending indices is split into its l low bits and the rest, h. The low bits lie one after
// another, from the lowest bit of the first word on, and fill up whole words. After them comes a
// bitmap of k + floor((n - 1) / 2^l) bits, also filled up to words, in which bit h + i is set. A
// plain bitmap of n bits takes the place of both where its words are not more. What is not used is
// zero.
//
// Any words decode: the j-th of the bits set in the bitmap gives entry j, the j-th low bits
// included. Bits set beyond the k-th count for nothing, and an entry that lacks its bit, or comes
// to n or more, is n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {

// How a set of at most k of the numbers below n is written. 1 <= k <= n < 2^31.
struct IndexLayout {
  IndexLayout(int64_t n, int64_t k);

  int64_t n, k;
  bool plain;  // a plain bitmap
  int low;     // how many low bits an entry has; 0 where plain
  int64_t low_words;
  int64_t upper_bits;
  int64_t words;  // of all
};

// The layouts of a list, and where each tensor's part begins.
struct IndexLayouts {
  IndexLayouts(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks);

  std::vector<IndexLayout> each;
  std::vector<int64_t> words, entries;  // one more than tensors, the last the sum of all
  std::vector<int64_t> lengths, ks;
};

// Writes the sets of a list, one after another; `indices` has ks[i] entries for tensor i, of which
// the first counts[i] count, below 0 as 0 and above ks[i] as ks[i]; all where counts is null.
// Returns "", or the fault of an index that counts, as ScatterList; `words` is then meaningless.
std::string PackIndexList(const Executor& executor, const IndexLayouts& layouts,
                          const int32_t* indices, const int32_t* counts, uint32_t* words);

// The entries of the sets of a list, of each worker: indices is [workers][sum of ks].
void UnpackIndexList(const Executor& executor, const IndexLayouts& layouts, const uint32_t* words,
                     int64_t workers, int32_t* indices);

// The parts of all tensors that the workers sent. Other than in Entries, the indices are packed.
struct SetEntries {
  const float* values;    // [workers][sum of ks]
  const uint32_t* words;  // [workers][words of all]
  const int32_t* counts;  // as those of Entries
  int64_t workers;
};

// ScatterList of the entries of these sets, which are read where they are added. An entry that is
// outside its tensor is a fault if it counts.
std::string ScatterSetList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                           const IndexLayouts& layouts, const SetEntries& entries, float factor,
                           bool* finite);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `layouts` are those of `each`; `fault` is as that of scatter_list.h.
extern "C" {

int grace_cuda_pack_index_list(const grace::IndexLayout* layouts, int64_t count,
                               const int32_t* indices, const int32_t* counts, uint32_t* words,
                               int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_set_list(const grace::DecodeOutput* targets, int64_t count,
                                const grace::IndexLayout* layouts, const grace::SetEntries* entries,
                                float factor, bool* finite, int32_t* fault, void* workspace,
                                size_t* bytes, void* stream);
int grace_cuda_unpack_index_list(const grace::IndexLayout* layouts, int64_t count,
                                 const uint32_t* words, int64_t workers, int32_t* indices,
                                 void* workspace, size_t* bytes, void* stream);

}  // extern "C"
