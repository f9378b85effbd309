// The only place that chooses an instruction set.
//
// A kernel is compiled in a namespace for each instruction set of the platform, see each_isa.h;
// GRACE_CHOOSE(Name) is the one to call. Call it once a buffer, never once a group.
#pragma once

// Clang spells the per-function target differently; it gets the generic kernels.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_X86 1
#include <immintrin.h>
// Between one of these and GRACE_END, functions are compiled for that instruction set.
#define GRACE_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2\")")
#define GRACE_BEGIN_AVX512    \
  _Pragma("GCC push_options") \
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

#include <cstdint>

namespace grace {

// The instruction sets of this platform, the better ones later.
#if GRACE_NEON
enum class Isa { kGeneric = 0, kNeon = 1 };
#else
enum class Isa { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };
#endif

// The instruction set in use: the best this processor has, unless SetIsa said otherwise.
Isa ActiveIsa();

// "generic", "avx2", "avx512", "neon" or "auto". False, and no change, if unknown or not supported
// here.
bool SetIsa(const char* name);

const char* IsaName();

// While an object lives, the processor treats denormal inputs and results as zeros of their sign,
// as in TensorFlow's threads. Kernels whose results do not depend on it use it for speed, since
// processors are many times slower with denormals.
class DenormalsAreZero {
 public:
  DenormalsAreZero() : before_(Mode()) { SetMode(before_ | kZero); }
  ~DenormalsAreZero() { SetMode(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kZero = 0x8040;
  static uint64_t Mode() { return __builtin_ia32_stmxcsr(); }
  static void SetMode(uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }
#elif GRACE_NEON
  static constexpr uint64_t kZero = 1 << 24;
  static uint64_t Mode() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void SetMode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
#error "How is this processor told to treat denormals as zero?"
#endif
  const uint64_t before_;
};

}  // namespace grace

#if GRACE_X86
#define GRACE_CHOOSE(...)                                                        \
  (::grace::ActiveIsa() == ::grace::Isa::kAvx512 ? &::grace::avx512::__VA_ARGS__ \
   : ::grace::ActiveIsa() == ::grace::Isa::kAvx2 ? &::grace::avx2::__VA_ARGS__   \
                                                 : &::grace::generic::__VA_ARGS__)
#elif GRACE_NEON
#define GRACE_CHOOSE(...)                                                    \
  (::grace::ActiveIsa() == ::grace::Isa::kNeon ? &::grace::neon::__VA_ARGS__ \
                                               : &::grace::generic::__VA_ARGS__)
#else
#define GRACE_CHOOSE(...) (&::grace::generic::__VA_ARGS__)
#endif
