#include "kernels/base/device/launch.h"
#include "kernels/select/device/select.h"
#include "kernels/select/top_k.h"

namespace grace {
namespace {

struct TopItem : Selected {
  static constexpr bool kSampled = false;
  __device__ int Membership() const { return 0; }
};
using TopSearch = Search<false>;

// A block computes acc of a stretch, writes it to `residual_out`, and counts the first digits of
// its keys.
__global__ void __launch_bounds__(kThreads, 5)
    ComputeStretches(Table<TopItem> table, TopSearch* searches, bool* finite) {
  __shared__ uint32_t bins[kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const TopItem own = table.items[tensor];
  TopSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  ClearBins(bins);
  __syncthreads();
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float acc[kEach];
    all &= own.Compute(chunk, from, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) CountKey<0>(__float_as_uint(acc[j]) & kMagnitude, 0, bins);
  }
  if (!all) *finite = false;
  MergeBins<0>(bins, search.rankings);
  if (!ArrivesAsLast(search.arrived, StretchesOf(own.n))) return;
  FindDigit<0>(static_cast<uint32_t>(own.k), search.rankings);
}

int Select(const EncodeInput* list, int64_t count, float multiplier, KeyRange range,
           const int64_t* ks, float* values, int32_t* indices, int32_t* counts, bool* finite,
           Launch& launch) {
  int64_t stretches = 0;
  for (int64_t i = 0; i < count; ++i) stretches += StretchesOf(list[i].n);
  TopItem* const items = launch.Take<TopItem>(count);
  const SelectRooms<false> rooms(launch, count, stretches);
  if (launch.OnlyMeasures()) return 0;
  int64_t at = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = list[i];
        const TopItem item{{{own.x, own.residual},
                            own.residual_out,
                            nullptr,
                            values + at,
                            indices + at,
                            own.n,
                            first,
                            ks[i],
                            multiplier,
                            0}};
        at += ks[i];
        return item;
      },
      [=](int64_t i) { return StretchesOf(list[i].n); }, finite);
  launch.Run(ComputeStretches, stretches, kThreads, table, rooms.searches, finite);
  launch.Run(MarkStretches<TopItem>, stretches, kThreads, table, rooms.searches, rooms.words);
  launch.Run(RankStretches<TopItem>, stretches, kThreads, table, rooms.searches, rooms.words,
             range);
  launch.Run(CountStretches<TopItem>, stretches, kThreads, table, rooms.searches, rooms.words,
             range, rooms.in_chunks, rooms.before, counts);
  launch.Run(SendStretches<TopItem>, stretches, kThreads, table, rooms.searches, rooms.words, range,
             rooms.in_chunks, rooms.before);
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
