// What tests may set from outside, through ctypes.
#include "kernels/base/dispatch.h"
#include "ops/glue/thread_pool.h"

#define GRACE_EXPORT extern "C" __attribute__((visibility("default")))

GRACE_EXPORT int grace_set_isa(const char* name) { return grace::SetIsa(name); }

GRACE_EXPORT const char* grace_isa() { return grace::IsaName(); }

GRACE_EXPORT void grace_set_threads(int threads) { grace::SetThreads(threads); }
