// Selection by a sampled threshold, of a list of tensors, with momentum correction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/select/momentum.h"
#include "kernels/select/top_k.h"

namespace grace {

// How many times a threshold may be lowered, and what it is multiplied by.
constexpr int kLowerings = 10;
constexpr float kLower = 0.8f;

// How the threshold of one tensor is found: of the elements start, start + stride, ..., `size` in
// all, the rank-th largest magnitude; start is drawn below stride. A stride of 1: no threshold.
struct Sampling {
  int64_t stride;
  int64_t size;
  int64_t rank;
  PhiloxKey key;
};

struct Correction {
  std::vector<MomentumState> states;  // one a tensor, or none: acc = x * multiplier + residual
  float momentum;
  bool nesterov;
  bool masked;  // whether next is 0 at what is sent
  float limit;  // scale = limit / norm of x * multiplier where that is larger; below 0: none
};

// Of the ks[i] largest elements of each acc, those of a magnitude of at least the threshold, which
// are counts[i]; the entries beyond are 0. While the threshold leaves less than 4/5 of ks[i], it is
// multiplied by 0.8, at most ten times. Zeros, denormals and NaN are never sent, but NaN may take
// one of the ks[i] places. residual_out gets acc minus what is sent. The multiplier is 1 where the
// sources have no residuals. Returns whether every acc is finite.
bool SampledKList(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const Correction& correction,
                  const std::vector<Sampling>& samplings, const Selection& selection,
                  int32_t* counts);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `states`, null where there are none, and `samplings` are the host's; the arguments from
// `momentum` to `limit` are those of Correction.
extern "C" {

int grace_cuda_sampled_k_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                              const grace::MomentumState* states, float momentum, bool nesterov,
                              bool masked, float limit, const grace::Sampling* samplings,
                              const int64_t* ks, float* values, int32_t* indices, int32_t* counts,
                              bool* finite, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
