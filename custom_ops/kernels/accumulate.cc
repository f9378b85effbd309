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
  // The multiplier is a factor like any other.
  const uint32_t bits = BitsOf(multiplier);
  const float factor = Flush(multiplier) == 0.0f ? FloatOf(bits & kSignBit) : multiplier;
  const DenormalsAreZero scope;
  accumulate(x + begin, residual ? residual + begin : nullptr, factor, n, room);
  return room;
}

}  // namespace grace
