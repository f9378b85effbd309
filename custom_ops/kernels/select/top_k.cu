#include "kernels/base/device/launch.h"
#include "kernels/select/device/select.h"
#include "kernels/select/top_k.h"

namespace grace {
namespace {

struct TopItem : Selected {
  static constexpr int kSides = 1, kBlocks = 5;
  static constexpr bool kSampled = false;
  static constexpr uint32_t kLeastKey = 0;
  struct Found {};
};

int Select(const EncodeInput* list, int64_t count, float multiplier, KeyRange range,
           const int64_t* ks, float* values, int32_t* indices, int32_t* counts, bool* finite,
           Launch& launch) {
  ListSelection<TopItem> selection(launch, list, count, range);
  if (launch.OnlyMeasures()) return 0;
  selection.Send(multiplier, ks, values, indices, finite, [](int64_t, TopItem*) {});
  selection.Rank(finite);
  selection.Write(counts);
  return launch.error();
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_top_k_list(const EncodeInput* list, int64_t count, float multiplier,
                                       const int64_t* ks, float* values, int32_t* indices,
                                       bool* finite, void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  return Select(list, count, multiplier, {0, kMagnitude}, ks, values, indices, nullptr, finite,
                launch);
}

GRACE_EXPORT int grace_cuda_threshold_list(const EncodeInput* list, int64_t count, float multiplier,
                                           float threshold, const int64_t* ks, float* values,
                                           int32_t* indices, int32_t* counts, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  return Select(list, count, multiplier, {FirstAbove(threshold), kInfinity}, ks, values, indices,
                counts, finite, launch);
}
