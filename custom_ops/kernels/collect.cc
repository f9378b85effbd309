#include "collect.h"

#define GRACE_KERNEL "each/collect.h"
#include "each_isa.h"

namespace grace {

Collect ChooseCollect() { return GRACE_CHOOSE(Pick); }

}  // namespace grace
