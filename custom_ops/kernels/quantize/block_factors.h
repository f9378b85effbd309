// The factor of each element's block, in groups of 32 elements, when one number per block is given.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/words.h"

namespace grace {

// s / c: what an element is multiplied by to be counted in levels.
inline float Inverse(float scale, float levels) {
  if (scale < kSmallestScale) return 0.0f;
  // The quotient of a huge scale is denormal: 0 whatever the processor's mode.
  return Flush(levels / scale);
}

// c / s: what one level is worth.
inline float Unit(float scale, float levels) {
  return scale < kSmallestScale ? 0.0f : scale / levels;
}

// m: the value of the lowest level, which is stored beside the scale.
inline float Lowest(float lowest, float) { return lowest; }

// Walks over the elements from `begin` on, a group at a time.
template <float (*kFactor)(float scale, float levels)>
class BlockFactors {
 public:
  // scales[0] is of the first block, scales[floats] of the second.
  BlockFactors(const float* scales, int64_t floats, int64_t n, int64_t block, float levels,
               int64_t begin)
      : scales_(scales), floats_(floats), n_(n), block_(block), levels_(levels) {
    Advance(begin);
  }

  // The factors of the group at `first`; those beyond the last element are some block's.
  void Group(int64_t first, float* factors) {
    for (int64_t i = 0; i < kGroup;) {
      if (first + i >= end_) Advance(first + i);
      const int64_t until = end_ < n_ ? std::min(kGroup, end_ - first) : kGroup;
      std::fill(factors + i, factors + until, factor_);
      i = until;
    }
  }

  // Whether the whole group at `first` lies in one block, whose factor then is `factor()`.
  bool Uniform(int64_t first) {
    if (first >= end_) Advance(first);
    return first + kGroup <= end_ || end_ == n_;
  }
  float factor() const { return factor_; }

 private:
  void Advance(int64_t element) {
    at_ = element / block_;
    end_ = std::min(n_, (at_ + 1) * block_);
    factor_ = kFactor(scales_[floats_ * at_], levels_);
  }

  const float* scales_;
  int64_t floats_, n_, block_;
  float levels_;
  int64_t at_, end_;
  float factor_;
};

}  // namespace grace

#define GRACE_KERNEL "kernels/quantize/factors-inl.h"
#include "kernels/base/each_isa.h"
