#include "kernels/base/accumulate.h"

#include "kernels/base/words.h"

#define GRACE_KERNEL "kernels/base/accumulate-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

const float* Accumulated::At(int64_t begin, int64_t n, float* room) const {
  const bool times = multiplier != 1.0f;
  if (!times && !residual) return x + begin;
  const auto accumulate = !residual ? GRACE_CHOOSE(Accumulate<true, false>)
                          : times   ? GRACE_CHOOSE(Accumulate<true, true>)
                                    : GRACE_CHOOSE(Accumulate<false, true>);
  const DenormalsAreZero scope;
  accumulate(x + begin, residual ? residual + begin : nullptr, multiplier, n, room);
  return room;
}

}  // namespace grace
