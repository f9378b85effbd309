#include "kernels/select/top_k.h"

#include "kernels/select/selector.h"

namespace grace {

bool TopKList(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              const Selection& selection) {
  return Selector(executor, sources, multiplier, selection, {0, kMagnitude}, nullptr).Run();
}

bool ThresholdList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, float threshold, const Selection& selection, int32_t* counts) {
  const KeyRange range{FirstAbove(threshold), kInfinity};
  return Selector(executor, sources, multiplier, selection, range, counts).Run();
}

}  // namespace grace
