// Selection by a sampled threshold, of a list of tensors, with momentum correction.
#pragma once

#include <cstdint>
#include <vector>

#include "compensate.h"
#include "momentum.h"
#include "parallel.h"
#include "philox.h"
#include "top_k.h"

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
// one of the ks[i] places. kept gets acc minus what is sent. The multiplier is 1 where the sources
// have no residuals. Returns whether every acc is finite.
bool SampledKList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                  const Correction& correction, const std::vector<Sampling>& samplings,
                  const Selection& selection, int32_t* counts);

}  // namespace grace
