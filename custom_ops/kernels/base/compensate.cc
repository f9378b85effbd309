#include "kernels/base/compensate.h"

#include <cstring>

#define GRACE_KERNEL "kernels/base/compensate-inl.h"
#include "kernels/base/each_isa.h"
#define GRACE_KERNEL "kernels/base/store-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

Compensate ChooseCompensate() { return GRACE_CHOOSE(ComputeAcc); }

const float* Accumulated::At(int64_t begin, int64_t n, float* room) const {
  if (multiplier == 1.0f && !residual) return x + begin;
  const DenormalsAreZero scope;
  ChooseCompensate()(x + begin, residual ? residual + begin : nullptr, multiplier, n, room);
  return room;
}

bool TooLargeToCache(int64_t elements) { return elements >= int64_t{1} << 21; }

void Store(const void* from, int64_t bytes, bool bypass, void* to) {
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  int64_t done = 0;
  if (bypass && reinterpret_cast<uintptr_t>(to) % kLine == 0) {
    GRACE_CHOOSE(CopyLines)(source, bytes / kLine, target);
    done = bytes / kLine * kLine;
  }
  std::memcpy(target + done, source + done, bytes - done);
}

void EndStores(bool bypass) {
  if (bypass) GRACE_CHOOSE(EndLines)();
}

}  // namespace grace
