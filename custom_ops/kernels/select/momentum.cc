#include "kernels/select/momentum.h"

#include <algorithm>
#include <cfloat>

#include "kernels/base/dispatch.h"
#include "kernels/quantize/scales.h"

#define GRACE_KERNEL "kernels/select/momentum-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

Advance ChooseAdvance() { return GRACE_CHOOSE(AddUp); }

std::vector<float> ClipScales(const Executor& executor, const std::vector<EncodeInput>& sources,
                              float multiplier, float limit) {
  const Compensate compensate = ChooseCompensate();
  std::vector<std::vector<Measure>> parts;
  for (const EncodeInput& source : sources) parts.emplace_back(CeilDiv(source.n, kChunk) + 1);
  LoopOver(sources).For(executor, CutAt{kChunk}, [&](size_t i, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    float product[kChunk];
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      const float* x = sources[i].x + begin;
      if (multiplier != 1.0f) compensate(x, nullptr, multiplier, count, product);
      const float* own = multiplier != 1.0f ? product : x;
      parts[i][begin / kChunk] = MeasureOf(own, count, Norm::kL2);
    }
  });
  const DenormalsAreZero scope;
  std::vector<float> scales(sources.size(), 1.0f);
  for (size_t i = 0; i < sources.size(); ++i) {
    const Measure whole = Joined(parts[i].data(), parts[i].size() - 1, Norm::kL2);
    const float norm = ScaleOf(whole, Norm::kL2);
    // The norm of what is finite may overflow; it counts as the largest number then.
    const double divisor = std::min(norm, FLT_MAX);
    if (norm > limit) scales[i] = static_cast<float>(double{limit} / divisor);
  }
  return scales;
}

}  // namespace grace
