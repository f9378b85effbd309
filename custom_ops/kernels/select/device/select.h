// The exact choice of the largest of each tensor of a list, in order of index.
//
// The caller's first kernel computes acc and counts the first digits of its keys. The next one
// reads acc once more and marks, with a bit an element, the keys that reach the digit found: only
// these can be sent, and the later kernels read only them. They find the k-th key, count how many
// elements each chunk sends, and write these.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/select/device/ranking.h"
#include "kernels/select/sampled_k.h"

namespace grace {

// A tensor to select from. Items of kernels derive from it; their kSampled says whether a second
// rank is searched for, that of a sample.
struct Selected {
  DeviceInput source;
  float* residual_out;  // holds acc; null: acc is computed again
  float* masked;        // becomes 0 where an element is sent; or null
  float* values;
  int32_t* indices;
  int64_t n, first, k;
  float multiplier;
  int32_t unused;

  __device__ float Acc(int64_t i) const {
    return residual_out ? residual_out[i] : source.At(i, multiplier);
  }

  // Computes acc in kEach groups of a chunk, 0 beyond it, and writes it to `residual_out`. Returns
  // whether it is finite.
  __device__ bool Compute(const WarpChunk& chunk, int from, float* acc) const {
    bool all = true;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      acc[j] = at < n ? source.At(at, multiplier) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      if (residual_out && at < n) residual_out[at] = acc[j];
      all &= IsFinite(acc[j]);
    }
    return all;
  }
};

// The further results of the kernels in a selection by a sample.
template <bool kSampled>
struct SampleSearch {
  uint32_t floors[kLowerings + 1], reaching[kLowerings + 1], nans;
  float scale;  // of x, for momentum
};
template <>
struct SampleSearch<false> {};

// The results of the kernels of one selection for a tensor. All of them begin at 0.
template <bool kSampled>
struct Search : SampleSearch<kSampled> {
  Ranking rankings[kSampled ? 2 : 1];  // the tensor's, and its sample's
  uint32_t arrived[6];
  // Sent are the keys above `key`, and the first `ties` equal to it.
  uint32_t key, ties;
  uint32_t written;
};

// The range of keys that may be sent: from `floor` up to `most`.
struct KeyRange {
  uint32_t floor, most;
};

// The keys above a bound in the lower half, those equal to it in the upper one.
__device__ inline uint64_t Tally(bool above, bool tie) {
  return static_cast<uint64_t>(tie) << 32 | (above ? 1 : 0);
}

// Calls visit(at, bits, marked) for each group of this warp's chunk in which an element is marked.
template <class Item, class Visit>
__device__ void VisitMarked(const Item& own, const WarpChunk& chunk, const uint32_t* words,
                            const Visit& visit) {
  for (int from = 0; from < chunk.groups; from += kEach) {
    uint32_t marks[kEach], bits[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) marks[j] = from + j < chunk.groups ? words[from + j] : 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool marked = marks[j] >> Lane() & 1;
      bits[j] = marked ? __float_as_uint(own.Acc(chunk.At(from + j))) : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (marks[j]) visit(chunk.At(from + j), bits[j], (marks[j] >> Lane() & 1) != 0);
    }
  }
}

// Marks the elements that can be sent, and those of the sample that the rest of its search needs;
// counts their second digits.
template <class Item>
__global__ void __launch_bounds__(kThreads)
    MarkStretches(Table<Item> table, Search<Item::kSampled>* searches, uint32_t* words) {
  __shared__ uint32_t bins[kMostBins], sample_bins[Item::kSampled ? kMostBins : 1];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  auto& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  uint32_t* const marks = words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups;
  const uint32_t prefix = search.rankings[0].prefix;
  const uint32_t sample_prefix = search.rankings[Item::kSampled].prefix;
  ClearBins(bins);
  if constexpr (Item::kSampled) ClearBins(sample_bins);
  __syncthreads();
  const auto membership = own.Membership();
  for (int from = 0; from < chunk.groups; from += kEach) {
    uint32_t keys[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      keys[j] = at < own.n ? __float_as_uint(own.Acc(at)) & kMagnitude : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      const uint32_t digit = keys[j] >> Digit<0>::kLow;
      bool marked = at < own.n && digit >= prefix;
      CountKey<1>(keys[j], prefix, bins);
      if constexpr (Item::kSampled) {
        if (at < own.n && digit == sample_prefix && membership.Has(at)) {
          marked = true;
          CountKey<1>(keys[j], sample_prefix, sample_bins);
        }
      }
      const uint32_t word = __ballot_sync(kAllLanes, marked);
      if (Lane() == 0 && from + j < chunk.groups) marks[from + j] = word;
    }
  }
  MergeBins<1>(bins, search.rankings);
  if constexpr (Item::kSampled) MergeBins<1>(sample_bins, search.rankings + 1);
  if (!ArrivesAsLast(search.arrived + 1, StretchesOf(own.n))) return;
  FindDigit<1>(search.rankings[0].left, search.rankings);
  if constexpr (Item::kSampled) FindDigit<1>(search.rankings[1].left, search.rankings + 1);
}

// Sets the bound of what is sent, once the k-th key is known.
template <bool kSampled>
__device__ void SetBound(uint32_t floor, Search<kSampled>* search) {
  const uint32_t key = search->rankings[0].prefix;
  search->key = key >= floor ? key : floor - 1;
  search->ties = key >= floor ? search->rankings[0].left : 0;
}

// Counts the last digits of what is marked.
template <class Item>
__global__ void __launch_bounds__(kThreads)
    RankStretches(Table<Item> table, Search<Item::kSampled>* searches, const uint32_t* words,
                  KeyRange range) {
  __shared__ uint32_t bins[kMostBins], sample_bins[Item::kSampled ? kMostBins : 1];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  auto& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const uint32_t prefix = search.rankings[0].prefix;
  const uint32_t sample_prefix = search.rankings[Item::kSampled].prefix;
  ClearBins(bins);
  if constexpr (Item::kSampled) ClearBins(sample_bins);
  __syncthreads();
  const auto membership = own.Membership();
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t at, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude;
                if (marked) CountKey<2>(key, prefix, bins);
                if constexpr (Item::kSampled) {
                  const bool counts = marked && key >> Digit<1>::kLow == sample_prefix;
                  if (counts && membership.Has(at)) CountKey<2>(key, sample_prefix, sample_bins);
                }
              });
  MergeBins<2>(bins, search.rankings);
  if constexpr (Item::kSampled) MergeBins<2>(sample_bins, search.rankings + 1);
  if (!ArrivesAsLast(search.arrived + 2, StretchesOf(own.n))) return;
  FindDigit<2>(search.rankings[0].left, search.rankings);
  if constexpr (Item::kSampled) {
    FindDigit<2>(search.rankings[1].left, search.rankings + 1);
    if (threadIdx.x == 0) own.SetFloors(&search);
  } else {
    if (threadIdx.x == 0) SetBound(range.floor, &search);
  }
}

// Counts the elements that each chunk sends; the last block of a tensor turns the stretches' counts
// into the counts before each of them.
template <class Item>
__global__ void __launch_bounds__(kThreads, 4)
    CountStretches(Table<Item> table, Search<Item::kSampled>* searches, const uint32_t* words,
                   KeyRange range, uint64_t* in_chunks, uint64_t* before, int32_t* counts) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  auto& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const uint32_t bound = search.key, ties = search.ties;
  uint64_t found = 0;
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude;
                const bool fits = marked && key <= range.most;
                found += Tally(fits && key > bound, fits && key == bound);
              });
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    found += __shfl_xor_sync(kAllLanes, found, lanes);
  }
  if (Lane() == 0) in_chunks[blockIdx.x * int64_t{kWarps} + WarpOf()] = found;
  uint64_t total;
  SumBefore(Lane() == 0 ? found : uint64_t{0}, &total);
  if (threadIdx.x == 0) before[blockIdx.x] = total;
  if (!ArrivesAsLast(search.arrived + 3, StretchesOf(own.n))) return;
  const uint64_t all = SumsBefore(before + own.first, StretchesOf(own.n));
  if (threadIdx.x != 0) return;
  const uint32_t equal = static_cast<uint32_t>(all >> 32);
  search.written = static_cast<uint32_t>(all) + (equal < ties ? equal : ties);
  if (counts) counts[tensor] = static_cast<int32_t>(search.written);
}

// Writes the sent elements to their places, and removes them from residual_out.
template <class Item>
__global__ void __launch_bounds__(kThreads)
    SendStretches(Table<Item> table, const Search<Item::kSampled>* searches, const uint32_t* words,
                  KeyRange range, const uint64_t* in_chunks, const uint64_t* before) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  const auto& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const uint32_t bound = search.key, ties = search.ties;
  uint64_t first = before[blockIdx.x];
  for (int w = 0; w < WarpOf(); ++w) first += in_chunks[blockIdx.x * int64_t{kWarps} + w];
  uint32_t above_before = static_cast<uint32_t>(first);
  uint32_t ties_before = static_cast<uint32_t>(first >> 32);
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t at, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude;
                const bool fits = marked && key <= range.most;
                const bool above = fits && key > bound, tie = fits && key == bound;
                const uint32_t all_above = __ballot_sync(kAllLanes, above);
                const uint32_t all_ties = __ballot_sync(kAllLanes, tie);
                const uint32_t own_ties = ties_before + __popc(all_ties & LanesBefore());
                if (above || (tie && own_ties < ties)) {
                  const uint32_t to = above_before + __popc(all_above & LanesBefore()) +
                                      (own_ties < ties ? own_ties : ties);
                  const float value = __uint_as_float(bits);
                  own.values[to] = value;
                  own.indices[to] = static_cast<int32_t>(at);
                  // A zero is sent as +0, so that its residual keeps its sign.
                  if (own.residual_out && key != 0) own.residual_out[at] = SubZ(value, value);
                  if (own.masked) own.masked[at] = 0.0f;
                }
                above_before += __popc(all_above);
                ties_before += __popc(all_ties);
              });
  // The entries beyond what is sent, shared out to the blocks of the tensor.
  const int64_t threads = StretchesOf(own.n) * kThreads;
  const int64_t thread = (blockIdx.x - own.first) * kThreads + threadIdx.x;
  for (int64_t i = search.written + thread; i < own.k; i += threads) {
    own.values[i] = 0.0f;
    own.indices[i] = 0;
  }
}

// The workspace of a selection of tensors that have so many stretches.
template <bool kSampled>
struct SelectRooms {
  Search<kSampled>* searches;
  uint32_t* words;
  uint64_t *in_chunks, *before;

  SelectRooms(Launch& launch, int64_t tensors, int64_t stretches)
      : searches(launch.Take<Search<kSampled>>(tensors)),
        words(launch.Take<uint32_t>(stretches * kStretchWords)),
        in_chunks(launch.Take<uint64_t>(stretches * kWarps)),
        before(launch.Take<uint64_t>(stretches)) {
    static_assert(sizeof(Search<kSampled>) % 4 == 0);
    launch.Zero(reinterpret_cast<uint32_t*>(searches), tensors * (sizeof *searches / 4));
  }
};

}  // namespace grace
