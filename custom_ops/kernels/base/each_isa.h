// Compiles the kernel that GRACE_KERNEL names, a header *-inl.h, once for each instruction set.
//
//     #define GRACE_KERNEL "kernels/signs/signs-inl.h"
//     #include "kernels/base/each_isa.h"
//
// After it, GRACE_CHOOSE(Pack) is the kernel's function Pack for the instruction set in use.
// Headers *-inl.h include nothing, have no guard, and use only the operations of vector.h.
#include "kernels/base/vector.h"

namespace grace {

namespace generic {
#include GRACE_KERNEL
}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {
#include GRACE_KERNEL
}  // namespace avx2
GRACE_END
GRACE_BEGIN_AVX512
namespace avx512 {
#include GRACE_KERNEL
}  // namespace avx512
GRACE_END
#endif

#if GRACE_NEON
namespace neon {
#include GRACE_KERNEL
}  // namespace neon
#endif

}  // namespace grace
#undef GRACE_KERNEL
