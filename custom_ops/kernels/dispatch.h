// The only place that chooses an instruction set.
//
// A kernel is written in the namespaces generic, avx2 and avx512; GRACE_CHOOSE(Name) is the one to
// call. It is asked once a buffer, never once a group.
#pragma once

// Clang spells the per-function target differently; it gets the generic kernels.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_X86 1
#define GRACE_INLINE inline __attribute__((always_inline))
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

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The kernels store 32-bit words in little-endian order."
#endif

namespace grace {

enum class Isa { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

// The instruction set in use: the best this processor has, unless SetIsa said otherwise.
Isa ActiveIsa();

// "generic", "avx2", "avx512" or "auto". False, and no change, if unknown or not supported here.
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

template <class Function>
Function* Choose(Function* generic, Function* avx2, Function* avx512) {
  switch (ActiveIsa()) {
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      return avx2;
    default:
      return generic;
  }
}

}  // namespace grace

#if GRACE_X86
#define GRACE_CHOOSE(...) \
  ::grace::Choose(generic::__VA_ARGS__, avx2::__VA_ARGS__, avx512::__VA_ARGS__)
#else
#define GRACE_CHOOSE(...) generic::__VA_ARGS__
#endif
