#include "compensate.h"

#include <cstring>

#define GRACE_KERNEL "each/compensate.h"
#include "each_isa.h"

namespace grace {

Compensate ChooseCompensate() { return GRACE_CHOOSE(ComputeAcc); }

ListLoop LoopOver(const std::vector<Source>& sources) {
  std::vector<int64_t> lengths;
  for (const Source& source : sources) lengths.push_back(source.n);
  return ListLoop(lengths);
}

bool TooLargeToCache(int64_t elements) { return elements >= int64_t{1} << 21; }

// Copies whole lines of 64 bytes past the caches, where it can. Returns how many bytes it copied.
namespace generic {
static int64_t CopyPast(const char*, int64_t, char*) { return 0; }
}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {
static int64_t CopyPast(const char* from, int64_t bytes, char* to) {
  int64_t done = 0;
  for (; done + 64 <= bytes; done += 64) {
    for (int64_t i = done; i < done + 64; i += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    }
  }
  return done;
}
}  // namespace avx2
GRACE_END
GRACE_BEGIN_AVX512
namespace avx512 {
static int64_t CopyPast(const char* from, int64_t bytes, char* to) {
  int64_t done = 0;
  for (; done + 64 <= bytes; done += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + done), _mm512_loadu_si512(from + done));
  }
  return done;
}
}  // namespace avx512
GRACE_END
#endif
#if GRACE_NEON
namespace neon {
using generic::CopyPast;
}  // namespace neon
#endif

void Store(const void* from, int64_t bytes, bool bypass, void* to) {
  const auto copy_past = GRACE_CHOOSE(CopyPast);
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  int64_t done = 0;
  if (bypass && reinterpret_cast<uintptr_t>(to) % 64 == 0) done = copy_past(source, bytes, target);
  std::memcpy(target + done, source + done, bytes - done);
}

void EndStores(bool bypass) {
#if GRACE_X86
  if (bypass) _mm_sfence();
#else
  (void)bypass;
#endif
}

}  // namespace grace
