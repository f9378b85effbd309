#include "kernels/base/dispatch.h"

#include <atomic>
#include <cstring>

namespace grace {
namespace {

#if GRACE_NEON
constexpr const char* kNames[] = {"generic", "neon"};
#else
constexpr const char* kNames[] = {"generic", "avx2", "avx512"};
#endif

Isa Best() {
#if GRACE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return Isa::kAvx2;
#endif
#if GRACE_NEON
  return Isa::kNeon;
#else
  return Isa::kGeneric;
#endif
}

std::atomic<Isa>& Active() {
  static std::atomic<Isa> active{Best()};
  return active;
}

}  // namespace

Isa ActiveIsa() { return Active().load(std::memory_order_relaxed); }

bool SetIsa(const char* name) {
  if (std::strcmp(name, "auto") == 0) {
    Active() = Best();
    return true;
  }
  for (int i = 0; i <= static_cast<int>(Best()); ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      Active() = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

const char* IsaName() { return kNames[static_cast<int>(ActiveIsa())]; }

}  // namespace grace
