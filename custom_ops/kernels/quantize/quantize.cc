#include "kernels/quantize/quantize.h"

#include <algorithm>

#include "kernels/base/words.h"
#include "kernels/quantize/block_factors.h"
#include "kernels/quantize/quantize_range.h"

#define GRACE_KERNEL "kernels/quantize/quantize-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using GroupsFunction = decltype(&generic::QuantizeGroups<true, 0, false, false>);

// The usual widths are compiled for themselves, the others share one.
template <bool kStochastic, bool kKeep, bool kMinMax>
GroupsFunction ChooseGroups(int32_t bits) {
  switch (bits) {
    case 2:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 2, kKeep, kMinMax>);
    case 4:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 4, kKeep, kMinMax>);
    case 8:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 8, kKeep, kMinMax>);
    default:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 0, kKeep, kMinMax>);
  }
}

template <bool kStochastic, bool kKeep>
GroupsFunction ChooseGroups(int32_t bits, bool minmax) {
  return minmax ? ChooseGroups<kStochastic, kKeep, true>(bits)
                : ChooseGroups<kStochastic, kKeep, false>(bits);
}

GroupsFunction ChooseGroups(const Quantization& code, bool stochastic, bool keep) {
  const int32_t bits = code.bits;
  const bool minmax = code.minmax;
  if (keep) {
    return stochastic ? ChooseGroups<true, true>(bits, minmax)
                      : ChooseGroups<false, true>(bits, minmax);
  }
  return stochastic ? ChooseGroups<true, false>(bits, minmax)
                    : ChooseGroups<false, false>(bits, minmax);
}

}  // namespace

void QuantizeRange(const QuantizeJob& job, int64_t begin, int64_t end, const float* x,
                   uint32_t* words, float* residual_out) {
  const int32_t bits = job.quantization.bits;
  const GroupsFunction groups =
      ChooseGroups(job.quantization, job.schedule != nullptr, residual_out != nullptr);
  const int64_t rest = (end - begin) % kGroup, whole = end - rest;
  const DenormalsAreZero scope;
  words += PackedWords(begin, bits);
  groups(job, begin, whole, x, words, residual_out ? residual_out + begin : nullptr);
  if (rest == 0) return;
  // The last, incomplete group: a whole one from a padded copy, less the padding's bits.
  float padded[kGroup] = {}, left[kGroup];
  words += PackedWords(whole - begin, bits);
  std::copy(x + (whole - begin), x + (end - begin), padded);
  groups(job, whole, whole + kGroup, padded, words, left);
  for (int32_t p = 0; p < bits; ++p) words[p] &= GroupMask(rest);
  if (residual_out) std::copy(left, left + rest, residual_out + whole);
}

void Quantize(const Executor& executor, const float* x, const float* scales, int64_t n,
              const Quantization& quantization, const PhiloxKey* key, uint32_t* words) {
  const PhiloxSchedule schedule(key ? *key : PhiloxKey{});
  const QuantizeJob job{scales, n, quantization, key ? &schedule : nullptr, {}};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    QuantizeRange(job, begin, end, x + begin, words, nullptr);
  });
}

}  // namespace grace
