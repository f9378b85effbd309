// The exact choice of the largest on each side of zero, tensor by tensor, in order of index.
//
// It works as in select.h, with a search for each side. The caller's first kernel also determines
// the number of elements to send of each side. An Item derives from Selected.
#pragma once

#include "kernels/select/device/select.h"

namespace grace {

// A number for each side.
struct Sides {
  uint32_t positive, negative;

  __device__ uint32_t Of(uint32_t bits) const { return bits & kSignBit ? negative : positive; }
};

// The results of the kernels for a tensor. All of them begin at 0. In the end the rankings define
// the marked elements that are sent: the keys above `prefix`, and the first `left` equal to it.
struct SideSearch {
  Ranking rankings[2];
  Sides shares;
  uint32_t arrived[5];

  __device__ Sides Prefixes() const { return {rankings[0].prefix, rankings[1].prefix}; }
  __device__ Sides Left() const { return {rankings[0].left, rankings[1].left}; }
  __device__ uint32_t Written() const { return shares.positive + shares.negative; }
};

// For each side: a Tally for each chunk, and for each stretch the Tally of all stretches before it.
struct SideTallies {
  uint64_t *in_chunks[2], *before[2];
};

// The first digit of a side without a share. No key begins with it, so that none is marked.
constexpr uint32_t kNoDigit = Digit<0>::kBins;

// Finds the next digits of the keys of both sides, by one block.
template <int kDigit>
__device__ void FindDigits(const Sides& ranks, Ranking* rankings) {
  FindDigit<kDigit>(ranks.positive, rankings);
  FindDigit<kDigit>(ranks.negative, rankings + 1);
}

template <int kDigit>
__device__ void MergeSides(const uint32_t (*bins)[kMostBins], Ranking* rankings) {
  MergeBins<kDigit>(bins[0], rankings);
  MergeBins<kDigit>(bins[1], rankings + 1);
}

// Makes a block's own bins 0, with a barrier.
__device__ inline void ClearSides(uint32_t (*bins)[kMostBins]) {
  ClearBins(bins[0]);
  ClearBins(bins[1]);
  __syncthreads();
}

// Marks the elements that can be sent; counts their second digits.
template <class Item>
__global__ void __launch_bounds__(kThreads, 4)
    MarkSides(Table<Item> table, SideSearch* searches, uint32_t* words) {
  __shared__ uint32_t bins[2][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  SideSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  uint32_t* const marks = words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups;
  const Sides prefixes = search.Prefixes();
  ClearSides(bins);
  for (int from = 0; from < chunk.groups; from += kEach) {
    uint32_t bits[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      bits[j] = at < own.n ? __float_as_uint(own.Acc(at)) : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t key = bits[j] & kMagnitude, prefix = prefixes.Of(bits[j]);
      CountKey<1>(key, prefix, bins[bits[j] >> 31]);
      const uint32_t word = __ballot_sync(kAllLanes, key >> Digit<0>::kLow >= prefix);
      if (Lane() == 0 && from + j < chunk.groups) marks[from + j] = word;
    }
  }
  MergeSides<1>(bins, search.rankings);
  if (!ArrivesAsLast(search.arrived + 1, StretchesOf(own.n))) return;
  FindDigits<1>(search.Left(), search.rankings);
}

// Counts the last digits of what is marked.
template <class Item>
__global__ void __launch_bounds__(kThreads)
    RankSides(Table<Item> table, SideSearch* searches, const uint32_t* words) {
  __shared__ uint32_t bins[2][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  SideSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const Sides prefixes = search.Prefixes();
  ClearSides(bins);
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t, uint32_t bits, bool marked) {
                if (marked) CountKey<2>(bits & kMagnitude, prefixes.Of(bits), bins[bits >> 31]);
              });
  MergeSides<2>(bins, search.rankings);
  if (!ArrivesAsLast(search.arrived + 2, StretchesOf(own.n))) return;
  FindDigits<2>(search.Left(), search.rankings);
}

// Counts the elements that each chunk sends; the last block of a tensor turns the stretches' counts
// into the counts before each of them.
template <class Item>
__global__ void __launch_bounds__(kThreads) CountSides(Table<Item> table, SideSearch* searches,
                                                       const uint32_t* words, SideTallies tallies) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  SideSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const Sides bounds = search.Prefixes();
  uint64_t found[2] = {0, 0};
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude, bound = bounds.Of(bits);
                const uint64_t tally = Tally(marked && key > bound, marked && key == bound);
                found[0] += bits & kSignBit ? 0 : tally;
                found[1] += bits & kSignBit ? tally : 0;
              });
#pragma unroll
  for (int side = 0; side < 2; ++side) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      found[side] += __shfl_xor_sync(kAllLanes, found[side], lanes);
    }
    if (Lane() == 0) {
      tallies.in_chunks[side][blockIdx.x * int64_t{kWarps} + WarpOf()] = found[side];
    }
    const uint64_t total = JoinBlock(Lane() == 0 ? found[side] : uint64_t{0}, Total());
    if (threadIdx.x == 0) tallies.before[side][blockIdx.x] = total;
  }
  if (!ArrivesAsLast(search.arrived + 3, StretchesOf(own.n))) return;
  SumsBefore(tallies.before[0] + own.first, StretchesOf(own.n));
  SumsBefore(tallies.before[1] + own.first, StretchesOf(own.n));
}

__device__ inline uint32_t AtMost(uint32_t most, uint32_t x) { return x < most ? x : most; }

// Writes the indices of the sent elements, and their values to the workspace.
template <class Item>
__global__ void __launch_bounds__(kThreads) SendSides(Table<Item> table, const SideSearch* searches,
                                                      const uint32_t* words, SideTallies tallies) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  const SideSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const Sides bounds = search.Prefixes(), ties = search.Left();
  uint64_t first[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    first[side] = tallies.before[side][blockIdx.x];
    const uint64_t* const in_chunks = tallies.in_chunks[side] + blockIdx.x * int64_t{kWarps};
    for (int w = 0; w < WarpOf(); ++w) first[side] += in_chunks[w];
  }
  uint32_t above_before = static_cast<uint32_t>(first[0]) + static_cast<uint32_t>(first[1]);
  Sides ties_before{static_cast<uint32_t>(first[0] >> 32), static_cast<uint32_t>(first[1] >> 32)};
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t at, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude, bound = bounds.Of(bits);
                const bool above = marked && key > bound, tie = marked && key == bound;
                const uint32_t all_above = __ballot_sync(kAllLanes, above);
                const uint32_t positive = __ballot_sync(kAllLanes, tie && !(bits & kSignBit));
                const uint32_t negative = __ballot_sync(kAllLanes, tie && bits & kSignBit);
                const Sides own_ties{ties_before.positive + __popc(positive & LanesBefore()),
                                     ties_before.negative + __popc(negative & LanesBefore())};
                if (above || (tie && own_ties.Of(bits) < ties.Of(bits))) {
                  const uint32_t to = above_before + __popc(all_above & LanesBefore()) +
                                      AtMost(ties.positive, own_ties.positive) +
                                      AtMost(ties.negative, own_ties.negative);
                  own.values[to] = __uint_as_float(bits);
                  own.indices[to] = static_cast<int32_t>(at);
                }
                above_before += __popc(all_above);
                ties_before.positive += __popc(positive);
                ties_before.negative += __popc(negative);
              });
}

}  // namespace grace
