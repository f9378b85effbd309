// Adds up the sparse vectors of several workers, for a list of tensors. Every element of the dense
// results is written to memory once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

// The workers' parts of all tensors: row w has ks[0] entries for tensor 0, then ks[1] for tensor 1.
struct Entries {
  const float* values;     // [workers][sum of ks]
  const int32_t* indices;  // [workers][sum of ks]
  // [workers][tensors], below 0 as 0 and above ks as ks; or null: all entries count.
  const int32_t* counts;
  int64_t workers;
  std::vector<int64_t> ks;
};

// How many of worker w's entries for tensor i count, by counts as those of Entries.
inline int64_t UsedOf(const int32_t* counts, const std::vector<int64_t>& ks, int64_t w, int64_t i) {
  const int64_t tensors = ks.size();
  return counts ? std::clamp<int64_t>(counts[w * tensors + i], 0, ks[i]) : ks[i];
}

// One sentence on a fault of an index that counts, of the first faulty tensor; "" without a fault.
// Values are ignored.
std::string IndexFault(const Executor& executor, const std::vector<int64_t>& lengths,
                       const Entries& entries);

// total = (the sum of the workers' vectors, from zero, in worker order; denormals, given or
// arising, count as 0) * factor; the product treats denormals as TensorFlow's does, as zeros of
// their sign. Within a worker's part of a tensor indices must ascend strictly and be inside the
// tensor. Sets `finite` to whether every total is finite. Returns "", or one sentence on a fault in
// the first faulty tensor; the totals are then meaningless.
std::string ScatterList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                        const Entries& entries, float factor, bool* finite);

// residual_out_i at its part of indices = value - decoded, where a decoded zero or denormal counts
// as +0 and a denormal value as zero of its sign. Returns as ScatterList.
std::string RefineList(const Executor& executor, const std::vector<DecodeOutput>& residual_out,
                       const int32_t* indices, const float* values, const float* decoded,
                       const std::vector<int64_t>& ks);

// Returns whether each of `count` indices is greater than the one before it.
using Ascending = bool (*)(const int32_t* indices, int64_t count);
Ascending ChooseAscending();

// total = buffer * factor, in place; returns whether all of it is finite.
using Scale = bool (*)(float factor, int64_t count, float* buffer);
Scale ChooseScale();

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// fault[3] gets the facts of the sentence: 0 without a fault, 1 for an index
// outside its tensor, 2 for indices that do not ascend; the tensor; the index. With a fault
// `finite` is false. `indices`, `values` and `counts` are those of Entries.
extern "C" {

int grace_cuda_index_fault(const int64_t* lengths, int64_t count, const int32_t* indices,
                           const int32_t* counts, int64_t workers, const int64_t* ks,
                           int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_refine_list(const grace::DecodeOutput* list, int64_t count, const int32_t* indices,
                           const float* values, const float* decoded, const int64_t* ks,
                           int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_list(const grace::DecodeOutput* list, int64_t count, const float* values,
                            const int32_t* indices, const int32_t* counts, int64_t workers,
                            const int64_t* ks, float factor, bool* finite, int32_t* fault,
                            void* workspace, size_t* bytes, void* stream);

}  // extern "C"
