// The elements largest in magnitude of each tensor of a list.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

// The selection of a list: the parts of its tensors one after another, ks[i] entries for tensor i.
struct Selection {
  std::vector<int64_t> ks;
  float* values;
  int32_t* indices;
};

// Which keys, bits without the sign, may be sent at all: from `floor`, which may be 0, to `most`.
struct KeyRange {
  uint32_t floor, most;
};

// Of each acc = x * multiplier + residual the k elements whose bits without the sign are largest as
// integers, of equal ones those of lower index: indices ascend, values are acc at them. Exact for
// any data. 1 <= k <= n < 2^31. residual_out gets acc minus what was sent. Returns whether every
// acc is finite.
bool TopKList(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              const Selection& selection);

// The first key above a threshold of at least 0; a denormal is not above 0.
inline uint32_t FirstAbove(float threshold) {
  return std::max((BitsOf(threshold) & kMagnitude) + 1, kSmallestNormal);
}

// As TopKList, but sends only the elements with |acc| > threshold, counts[i] of them; the entries
// beyond are 0. NaN is not above a threshold but may take one of the ks[i] places. A denormal
// counts as 0.
bool ThresholdList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, float threshold, const Selection& selection, int32_t* counts);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `values` and `indices` are those of Selection.
extern "C" {

int grace_cuda_threshold_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                              float threshold, const int64_t* ks, float* values, int32_t* indices,
                              int32_t* counts, bool* finite, void* workspace, size_t* bytes,
                              void* stream);
int grace_cuda_top_k_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                          const int64_t* ks, float* values, int32_t* indices, bool* finite,
                          void* workspace, size_t* bytes, void* stream);

}  // extern "C"
