// Loops that the compiler vectorises by itself, compiled once for each instruction set.
//
// The loop is an inline function marked GRACE_LOOP; GRACE_EACH_ISA(...) puts a function that calls
// it into the namespaces generic, avx2 and avx512, and GRACE_CHOOSE picks one of them.
#pragma once

#include "dispatch.h"

#define GRACE_LOOP static inline __attribute__((always_inline))

#if GRACE_X86
#define GRACE_EACH_ISA(...)                                            \
  namespace generic {                                                  \
  __VA_ARGS__                                                          \
  }                                                                    \
  GRACE_BEGIN_AVX2 namespace avx2 { __VA_ARGS__ } GRACE_END            \
  GRACE_BEGIN_AVX512 namespace avx512 { __VA_ARGS__ } GRACE_END
#else
#define GRACE_EACH_ISA(...) \
  namespace generic {       \
  __VA_ARGS__               \
  }
#endif
