#include "kernels/base/collect.h"

#define GRACE_KERNEL "kernels/base/collect-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

Collect ChooseCollect() { return GRACE_CHOOSE(Pick); }

}  // namespace grace
