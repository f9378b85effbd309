#include "accumulate.h"

#include "words.h"

#define GRACE_KERNEL "each/accumulate.h"
#include "each_isa.h"

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
