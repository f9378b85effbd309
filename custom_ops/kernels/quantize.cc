#include "quantize.h"

#include <algorithm>

#include "block_factors.h"
#include "philox_blocks.h"
#include "words.h"

namespace grace {

struct QuantizeJob {
  const float* scales;
  int64_t n;
  Quantization quantization;
  const PhiloxSchedule* schedule;
};

}  // namespace grace

#define GRACE_KERNEL "each/quantize.h"
#include "each_isa.h"

namespace grace {
namespace {

using GroupsFunction = decltype(&generic::QuantizeGroups<true, 0>);

// The usual widths are compiled for themselves, the others share one.
template <bool kStochastic>
GroupsFunction ChooseGroups(int32_t bits) {
  switch (bits) {
    case 2:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 2>);
    case 4:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 4>);
    case 8:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 8>);
    default:
      return GRACE_CHOOSE(QuantizeGroups<kStochastic, 0>);
  }
}

// The last, incomplete group: as a whole one from a padded copy, then without the padding's bits.
void LastGroup(const QuantizeJob& job, GroupsFunction groups, int64_t begin,
               const float* x, uint32_t* words) {
  const int64_t rest = job.n - begin;
  float padded[kGroup] = {};
  std::copy(x, x + rest, padded);
  groups(job, begin, begin + kGroup, padded, words);
  for (int32_t p = 0; p < job.quantization.bits; ++p) words[p] &= GroupMask(rest);
}

}  // namespace

void Quantize(const Executor& executor, const float* x, const float* scales, int64_t n,
              const Quantization& quantization, const PhiloxKey* key, uint32_t* words) {
  const GroupsFunction groups =
      key ? ChooseGroups<true>(quantization.bits) : ChooseGroups<false>(quantization.bits);
  const PhiloxSchedule schedule(key ? *key : PhiloxKey{});
  const QuantizeJob job{scales, n, quantization, &schedule};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t whole = begin + (end - begin) / kGroup * kGroup;
    const DenormalsAreZero scope;
    uint32_t* own = words + PackedWords(begin, quantization.bits);
    groups(job, begin, whole, x + begin, own);
    own += PackedWords(whole - begin, quantization.bits);
    if (whole < end) LastGroup(job, groups, whole, x + whole, own);
  });
}

}  // namespace grace
