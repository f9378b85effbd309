#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/select/device/select.h"
#include "kernels/select/sampled_top_k.h"

namespace grace {
namespace {

// The elements of a tensor that its threshold is the rank-th largest of.
struct Sample {
  uint32_t start, stride, size;

  __device__ bool Has(int64_t at) const {
    const uint32_t from = static_cast<uint32_t>(at) - start;
    return at >= start && from % stride == 0 && from / stride < size;
  }
};

struct SampledItem : Selected {
  static constexpr int kSides = 1, kBlocks = 3;
  static constexpr bool kSampled = true;
  static constexpr uint32_t kLeastKey = 0;
  struct Found {
    uint32_t floors[kLowerings + 1], reaching[kLowerings + 1], nans;
  };

  const float* u;  // null: no momentum
  float* next;
  const float* scale_of_x;  // null: 1
  PhiloxKey key;
  int32_t stride, size, rank;  // of no sample: 1, 0, 0
  float momentum;
  bool nesterov, masked;  // masked: next becomes 0 where an element is sent

  __device__ Sample Membership() const {
    const uint32_t start = __umulhi(PhiloxBlock(key, 0).words[0], static_cast<uint32_t>(stride));
    return {start, static_cast<uint32_t>(stride), static_cast<uint32_t>(size)};
  }

  // acc of an element, and its next momentum, as Advance has them.
  __device__ float Advanced(int64_t i, float scale, float* ahead) const {
    const float g = MulZ(MulZ(source.x[i], multiplier), scale);
    const float v = source.residual[i];
    *ahead = AddZ(MulZ(momentum, u[i]), g);
    return nesterov ? AddZ(AddZ(v, g), MulZ(momentum, *ahead)) : AddZ(v, *ahead);
  }

  template <class Search>
  __device__ bool Compute(const WarpChunk& chunk, int from, const Search& search,
                          float* acc) const {
    if (!u) return Selected::Compute(chunk, from, search, acc);
    const float scale = scale_of_x ? *scale_of_x : 1.0f;
    float ahead[kEach];
    bool all = true;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      acc[j] = at < n ? Advanced(at, scale, ahead + j) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      if (at >= n) continue;
      next[at] = ahead[j];
      if (residual_out) residual_out[at] = acc[j];
      all &= IsFinite(acc[j]);
    }
    return all;
  }

  template <class Search>
  __device__ void SetRanks(Search*, uint32_t* ranks) const {
    ranks[0] = static_cast<uint32_t>(k);
    ranks[1] = static_cast<uint32_t>(rank);
  }

  __device__ void TakeOut(int64_t at, uint32_t bits) const {
    Selected::TakeOut(at, bits);
    if (masked) next[at] = 0.0f;
  }

  // Sets floors[i] to the key of the threshold that was lowered i times.
  template <class Search>
  __device__ void EndRanks(uint32_t, Search* search) const {
    const uint32_t key = search->rankings[1].prefix;
    float threshold = __uint_as_float(key < kInfinity ? key : kInfinity);
    for (int round = 0; round <= kLowerings; ++round) {
      const uint32_t bits = __float_as_uint(threshold);
      search->floors[round] = bits < kSmallestNormal ? kSmallestNormal : bits;
      threshold = MulZ(threshold, kLower);
    }
  }
};

// How far the threshold is lowered, once it is counted what reaches it.
__device__ uint32_t FloorOf(const SampledItem& own, const Search<SampledItem>& search) {
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
    LowerStretches(Table<SampledItem> table, Search<SampledItem>* searches, const uint32_t* words) {
  __shared__ uint32_t floors[kLowerings + 1], reaching[kLowerings + 1], nans;
  const int32_t tensor = table.Find(blockIdx.x);
  const SampledItem& own = table.items[tensor];
  Search<SampledItem>& search = searches[tensor];
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
  SetBounds(FloorOf(own, search), &search);
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
  ListSelection<SampledItem> selection(launch, list, count, {kSmallestNormal, kInfinity});
  const bool clips = states && limit >= 0;
  float* const scales = launch.Take<float>(clips ? count : 0);
  const auto clip = [&](void* room, size_t* room_bytes) {
    return grace_cuda_clip_scales(list, count, multiplier, limit, scales, room, room_bytes, stream);
  };
  size_t clip_bytes = 0;
  if (clips) clip(nullptr, &clip_bytes);
  char* const room = launch.Take<char>(clip_bytes);
  if (launch.OnlyMeasures()) return 0;
  if (clips) {
    const int error = clip(room, &clip_bytes);
    if (error) return error;
  }
  selection.Send(multiplier, ks, values, indices, finite, [&](int64_t i, SampledItem* item) {
    const Sampling& sampling = samplings[i];
    const bool samples = sampling.stride > 1;
    item->u = states ? states[i].u : nullptr;
    item->next = states ? states[i].next : nullptr;
    item->scale_of_x = clips ? scales + i : nullptr;
    item->key = sampling.key;
    item->stride = static_cast<int32_t>(sampling.stride);
    item->size = samples ? static_cast<int32_t>(sampling.size) : 0;
    item->rank = samples ? static_cast<int32_t>(sampling.rank) : 0;
    item->momentum = momentum;
    item->nesterov = nesterov;
    item->masked = masked && states;
  });
  selection.Rank(finite);
  selection.Run(LowerStretches, selection.words());
  selection.Write(counts);
  return launch.error();
}
