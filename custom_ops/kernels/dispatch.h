// The only place that chooses an instruction set.
//
// A kernel is compiled in a namespace for each instruction set of the platform, see each_isa.h;
// GRACE_CHOOSE(Name) is the one to call. It is asked once a buffer, never once a group.
#pragma once

// Clang spells the per-function target differently; it gets the generic kernels.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_X86 1
#include <immintrin.h>
// Between one of these and GRACE_END, functions are compiled for that instruction set.
#define GRACE_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2\")")
#define GRACE_BEGIN_AVX512          \
  _Pragma("GCC push_options")       \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512\")")
#define GRACE_END _Pragma("GCC pop_options")
#else
#define GRACE_X86 0
#endif

#if defined(__aarch64__)
#define GRACE_NEON 1
#else
#define GRACE_NEON 0
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The kernels store 32-bit words in little-endian order."
#endif

namespace grace {

// Those of this platform, the better ones later.
#if GRACE_NEON
enum class Isa { kGeneric = 0, kNeon = 1 };
#else
enum class Isa { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };
#endif

// The instruction set in use: the best this processor has, unless SetIsa said otherwise.
Isa ActiveIsa();

// "generic", "avx2", "avx512", "neon" or "auto". False, and no change, if unknown or not supported here.
bool SetIsa(const char* name);

const char* IsaName();

// Lets the processor treat denormals as zero while it lives. The kernels' results are the same with
// and without, by their definition; a processor that does not is many times slower on them.
class DenormalsAreZero {
 public:
#if defined(__x86_64__)
  DenormalsAreZero() : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(before_ | 0x8040);
  }
  ~DenormalsAreZero() { __builtin_ia32_ldmxcsr(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  unsigned before_;
#else
  DenormalsAreZero() {}
#endif
};

}  // namespace grace

#if GRACE_X86
#define GRACE_CHOOSE(...)                                                           \
  (::grace::ActiveIsa() == ::grace::Isa::kAvx512 ? &::grace::avx512::__VA_ARGS__    \
   : ::grace::ActiveIsa() == ::grace::Isa::kAvx2 ? &::grace::avx2::__VA_ARGS__      \
                                                 : &::grace::generic::__VA_ARGS__)
#elif GRACE_NEON
#define GRACE_CHOOSE(...)                                                           \
  (::grace::ActiveIsa() == ::grace::Isa::kNeon ? &::grace::neon::__VA_ARGS__        \
                                               : &::grace::generic::__VA_ARGS__)
#else
#define GRACE_CHOOSE(...) (&::grace::generic::__VA_ARGS__)
#endif
