#include "kernels/quantize/cast.h"

#define GRACE_KERNEL "kernels/quantize/cast-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using ToFunction = decltype(&generic::ToHalves<Half::kFloat16, false>);
using FromFunction = decltype(&generic::FromHalves<Half::kFloat16>);

template <bool kKeep>
ToFunction ChooseTo(Half type) {
  return type == Half::kFloat16 ? GRACE_CHOOSE(ToHalves<Half::kFloat16, kKeep>)
                                : GRACE_CHOOSE(ToHalves<Half::kBfloat16, kKeep>);
}

FromFunction ChooseFrom(Half type) {
  return type == Half::kFloat16 ? GRACE_CHOOSE(FromHalves<Half::kFloat16>)
                                : GRACE_CHOOSE(FromHalves<Half::kBfloat16>);
}

}  // namespace

bool CastList(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              Half type, uint16_t* halves) {
  const std::vector<int64_t> offsets = Offsets(Lengths(sources));
  const ToFunction plain = ChooseTo<false>(type), keeping = ChooseTo<true>(type);
  return EncodeChunks(
      executor, sources, multiplier, kLines,
      [&](size_t t, int64_t begin, int64_t count, const float* acc, float* writable, bool bypass) {
        alignas(64) uint16_t buffer[kChunk];
        (writable ? keeping : plain)(acc, count, writable, buffer);
        Store(buffer, 2 * count, bypass, halves + offsets[t] + begin);
      });
}

bool UncastList(const Executor& executor, const std::vector<DecodeOutput>& targets, Half type,
                const uint16_t* halves, float factor) {
  const std::vector<int64_t> offsets = Offsets(Lengths(targets));
  const FromFunction from = ChooseFrom(type);
  return DecodeChunks(executor, targets, kLines,
                      [&](size_t t, int64_t begin, int64_t count, float* out) {
                        return from(halves + offsets[t] + begin, count, factor, out);
                      });
}

}  // namespace grace
