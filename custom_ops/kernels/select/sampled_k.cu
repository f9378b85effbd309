#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/select/device/select.h"
#include "kernels/select/sampled_k.h"

namespace grace {
namespace {

using SampledSearch = Search<true>;

// The elements of a tensor that its threshold is the rank-th largest of.
struct Sample {
  uint32_t start, stride, size;

  __device__ bool Has(int64_t at) const {
    const uint32_t from = static_cast<uint32_t>(at) - start;
    return at >= start && from % stride == 0 && from / stride < size;
  }
};

struct SampledItem : Selected {
  static constexpr bool kSampled = true;

  const float* u;  // null: no momentum
  float* next;
  PhiloxKey key;
  int32_t stride, size, rank;  // of no sample: 1, 0, 0
  int32_t unused;

  __device__ Sample Membership() const {
    const uint32_t start = __umulhi(PhiloxBlock(key, 0).words[0], static_cast<uint32_t>(stride));
    return {start, static_cast<uint32_t>(stride), static_cast<uint32_t>(size)};
  }

  // Sets floors[i] to the key of the threshold that was lowered i times.
  __device__ void SetFloors(SampledSearch* search) const {
    const uint32_t key = search->rankings[1].prefix;
    float threshold = __uint_as_float(key < kInfinity ? key : kInfinity);
    for (int round = 0; round <= kLowerings; ++round) {
      const uint32_t bits = __float_as_uint(threshold);
      search->floors[round] = bits < kSmallestNormal ? kSmallestNormal : bits;
      threshold = MulZ(threshold, kLower);
    }
  }
};

// limit / divisor as a float; a processor that treats denormals as zeros gives 0 for one.
__device__ float Quotient(float limit, double divisor) {
  const double quotient = limit / divisor;
  // Rounded where it is no denormal, as in SmallProduct.
  return static_cast<float>(quotient * 0x1p64) < 0x1p-62f ? 0.0f : static_cast<float>(quotient);
}

// The sum of the values of a warp's lanes, over adjacent pairs, then pairs of pairs.
__device__ double AddLanes(double value) {
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

// The sum of the squares of a warp's chunk of x * multiplier, likewise over all of it.
__device__ double SquaresOf(const SampledItem& own, const WarpChunk& chunk) {
  const DeviceInput x{own.source.x, nullptr};
  double halves[2];
  for (int half = 0; half < 2; ++half) {
    double group_sum = 0.0;  // a lane has that of the group of its number
    for (int group = 0; group < kWarp && half * kWarp + group < chunk.groups; ++group) {
      const int64_t at = chunk.At(half * kWarp + group);
      const double value = at < own.n ? PlainFlush(x.At(at, own.multiplier)) : 0.0f;
      const double sum = AddLanes(value * value);
      if (Lane() == group) group_sum = sum;
    }
    halves[half] = AddLanes(group_sum);
  }
  return halves[0] + halves[1];
}

// Measures the norms of all tensors; the last block of a tensor gives its scale, see ClipScales.
__global__ void __launch_bounds__(kThreads, 4)
    MeasureStretches(Table<SampledItem> table, SampledSearch* searches, double* sums, float limit) {
  __shared__ double chunks[kWarps];
  const int32_t tensor = table.Find(blockIdx.x);
  const SampledItem own = table.items[tensor];
  SampledSearch& search = searches[tensor];
  const int64_t stretches = StretchesOf(own.n);
  const double squares = SquaresOf(own, WarpChunk(blockIdx.x - own.first, own.n));
  if (Lane() == 0) chunks[WarpOf()] = squares;
  __syncthreads();
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = ((chunks[0] + chunks[1]) + (chunks[2] + chunks[3])) +
                       ((chunks[4] + chunks[5]) + (chunks[6] + chunks[7]));
  }
  if (!ArrivesAsLast(search.arrived + 5, stretches)) return;
  double* const all = sums + own.first;
  for (int64_t step = 1; step < stretches; step *= 2) {
    for (int64_t i = 2 * step * threadIdx.x; i + step < stretches; i += 2 * step * kThreads) {
      all[i] = __ldcg(all + i) + __ldcg(all + i + step);
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  constexpr float kLargest = 0x1.fffffep127f;
  const double root = sqrt(__ldcg(all));
  const float norm = root < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(root);
  search.scale = norm > limit ? Quotient(limit, norm < kLargest ? norm : kLargest) : 1.0f;
}

// The hyperparameters of the momentum, which all tensors share.
struct SampledStep {
  float momentum;
  bool nesterov, clips;
};

// acc of an element, and its next momentum, as Advance has them.
__device__ float Advanced(const SampledItem& own, int64_t i, const SampledStep& step, float scale,
                          float* next) {
  const float g = MulZ(MulZ(own.source.x[i], own.multiplier), scale);
  const float v = own.source.residual[i];
  *next = AddZ(MulZ(step.momentum, own.u[i]), g);
  return step.nesterov ? AddZ(AddZ(v, g), MulZ(step.momentum, *next)) : AddZ(v, *next);
}

// A block computes acc and the next momentum of a stretch, writes both, and counts the first digits
// of the keys and of those of the sample.
__global__ void __launch_bounds__(kThreads, 3)
    AdvanceStretches(Table<SampledItem> table, SampledSearch* searches, SampledStep step,
                     bool* finite) {
  __shared__ uint32_t bins[kMostBins], sample_bins[kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const SampledItem own = table.items[tensor];
  SampledSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const Sample sample = own.Membership();
  const float scale = step.clips ? search.scale : 1.0f;
  ClearBins(bins);
  ClearBins(sample_bins);
  __syncthreads();
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float acc[kEach], next[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      acc[j] = next[j] = 0.0f;
      if (at >= own.n) continue;
      acc[j] = own.u ? Advanced(own, at, step, scale, next + j) : own.source.At(at, own.multiplier);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      if (at >= own.n) continue;
      if (own.u) own.next[at] = next[j];
      if (own.residual_out) own.residual_out[at] = acc[j];
      all &= IsFinite(acc[j]);
      const uint32_t key = __float_as_uint(acc[j]) & kMagnitude;
      CountKey<0>(key, 0, bins);
      if (sample.Has(at)) CountKey<0>(key, 0, sample_bins);
    }
  }
  if (!all) *finite = false;
  MergeBins<0>(bins, search.rankings);
  MergeBins<0>(sample_bins, search.rankings + 1);
  if (!ArrivesAsLast(search.arrived, StretchesOf(own.n))) return;
  FindDigit<0>(static_cast<uint32_t>(own.k), search.rankings);
  FindDigit<0>(static_cast<uint32_t>(own.rank), search.rankings + 1);
}

// How far the threshold is lowered, once it is counted what reaches it.
__device__ uint32_t FloorOf(const SampledItem& own, const SampledSearch& search) {
  if (own.size == 0) return kSmallestNormal;
  const uint32_t key = search.rankings[0].prefix;
  const int64_t k = own.k, nans = __ldcg(&search.nans);
  // Only keys above the k-th are counted: of a lower floor it is known that k keys reach it.
  const int64_t lost = key > kInfinity ? k : nans < k ? nans : k;
  int64_t reached = 0;
  for (int round = 0;; ++round) {
    const uint32_t floor = search.floors[round];
    reached += __ldcg(search.reaching + round);
    const int64_t passing = (floor <= key || reached > k ? k : reached) - lost;
    if (5 * passing >= 4 * k || round == kLowerings) return floor;
  }
}

// For each number of lowerings, counts the keys above the k-th that reach the threshold lowered so
// many times and do not reach it lowered once less.
__global__ void __launch_bounds__(kThreads)
    LowerStretches(Table<SampledItem> table, SampledSearch* searches, const uint32_t* words) {
  __shared__ uint32_t floors[kLowerings + 1], reaching[kLowerings + 1], nans;
  const int32_t tensor = table.Find(blockIdx.x);
  const SampledItem& own = table.items[tensor];
  SampledSearch& search = searches[tensor];
  WarpChunk chunk(blockIdx.x - own.first, own.n);
  if (own.size == 0) chunk.groups = 0;
  if (threadIdx.x <= kLowerings) {
    floors[threadIdx.x] = search.floors[threadIdx.x];
    reaching[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) nans = 0;
  __syncthreads();
  const uint32_t bound = search.rankings[0].prefix;
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude;
                if (!marked || key <= bound) return;
                if (key > kInfinity) atomicAdd(&nans, 1u);
                int round = 0;
                while (round <= kLowerings && key < floors[round]) ++round;
                if (round <= kLowerings) atomicAdd(reaching + round, 1u);
              });
  __syncthreads();
  if (threadIdx.x <= kLowerings && reaching[threadIdx.x]) {
    atomicAdd(search.reaching + threadIdx.x, reaching[threadIdx.x]);
  }
  if (threadIdx.x == 0 && nans) atomicAdd(&search.nans, nans);
  if (!ArrivesAsLast(search.arrived + 4, StretchesOf(own.n)) || threadIdx.x != 0) return;
  SetBound(FloorOf(own, search), &search);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_sampled_k_list(const EncodeInput* list, int64_t count, float multiplier,
                                           const MomentumState* states, float momentum,
                                           bool nesterov, bool masked, float limit,
                                           const Sampling* samplings, const int64_t* ks,
                                           float* values, int32_t* indices, int32_t* counts,
                                           bool* finite, void* workspace, size_t* bytes,
                                           void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t stretches = 0;
  for (int64_t i = 0; i < count; ++i) stretches += StretchesOf(list[i].n);
  const bool clips = states && limit >= 0;
  SampledItem* const items = launch.Take<SampledItem>(count);
  double* const sums = launch.Take<double>(clips ? stretches : 0);
  const SelectRooms<true> rooms(launch, count, stretches);
  if (launch.OnlyMeasures()) return 0;
  int64_t at = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = list[i];
        const Sampling& sampling = samplings[i];
        const bool samples = sampling.stride > 1;
        SampledItem item{};
        static_cast<Selected&>(item) = {{own.x, own.residual},
                                        own.residual_out,
                                        masked && states ? states[i].next : nullptr,
                                        values + at,
                                        indices + at,
                                        own.n,
                                        first,
                                        ks[i],
                                        multiplier,
                                        0};
        item.u = states ? states[i].u : nullptr;
        item.next = states ? states[i].next : nullptr;
        item.key = sampling.key;
        item.stride = static_cast<int32_t>(sampling.stride);
        item.size = samples ? static_cast<int32_t>(sampling.size) : 0;
        item.rank = samples ? static_cast<int32_t>(sampling.rank) : 0;
        at += ks[i];
        return item;
      },
      [=](int64_t i) { return StretchesOf(list[i].n); }, finite);
  const KeyRange range{kSmallestNormal, kInfinity};
  const SampledStep step{momentum, nesterov, clips};
  if (clips) {
    launch.Run(MeasureStretches, stretches, kThreads, table, rooms.searches, sums, limit);
  }
  launch.Run(AdvanceStretches, stretches, kThreads, table, rooms.searches, step, finite);
  launch.Run(MarkStretches<SampledItem>, stretches, kThreads, table, rooms.searches, rooms.words);
  launch.Run(RankStretches<SampledItem>, stretches, kThreads, table, rooms.searches, rooms.words,
             range);
  launch.Run(LowerStretches, stretches, kThreads, table, rooms.searches, rooms.words);
  launch.Run(CountStretches<SampledItem>, stretches, kThreads, table, rooms.searches, rooms.words,
             range, rooms.in_chunks, rooms.before, counts);
  launch.Run(SendStretches<SampledItem>, stretches, kThreads, table, rooms.searches, rooms.words,
             range, rooms.in_chunks, rooms.before);
  return launch.error();
}
