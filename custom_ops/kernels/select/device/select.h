// The exact choice of the largest of each tensor of a list, in order of index: of all elements, or
// on each side of zero.
//
// A first kernel computes acc and counts the first digits of its keys. The next one reads acc once
// more and marks, a bit an element, the keys that reach the digit found: those alone can be sent,
// and the kernels after it read nothing else. They find the last key that is sent, count what each
// chunk sends, and write it.
//
// An Item derives from Selected, whose members it may replace. It says with kSides whether the
// elements of each sign have a bound of their own, with kSampled whether a second rank is searched
// for, that of a sample, with kLeastKey which keys count at all, with kBlocks how many blocks run
// together at least where acc is computed, and with Found what else is found out about a tensor.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/select/device/ranking.h"
#include "kernels/select/sampled_top_k.h"

namespace grace {

// A tensor that is selected from.
struct Selected {
  DeviceInput source;
  float* residual_out;  // holds acc; null: acc is computed again
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
  template <class Search>
  __device__ bool Compute(const WarpChunk& chunk, int from, const Search&, float* acc) const {
    bool all = true;
    source.Gather<kEach>([&](int j) { return chunk.At(from + j) < n; },
                         [&](int j) { return chunk.At(from + j); }, multiplier, 0.0f, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      if (residual_out && at < n) residual_out[at] = acc[j];
      all &= IsFinite(acc[j]);
    }
    return all;
  }

  // Tells which elements are in the sample.
  __device__ int Membership() const { return 0; }

  // Sets the ranks that are searched for, once the first digits are counted. A block calls it.
  template <class Search>
  __device__ void SetRanks(Search*, uint32_t* ranks) const {
    ranks[0] = static_cast<uint32_t>(k);
  }

  // Once the keys of the ranks are known.
  template <class Search>
  __device__ void EndRanks(uint32_t floor, Search* search) const {
    SetBounds(floor, search);
  }

  // Takes what is sent out of the residual. A zero is sent as +0, so that its residual keeps its
  // sign.
  __device__ void TakeOut(int64_t at, uint32_t bits) const {
    const float value = __uint_as_float(bits);
    if (residual_out && bits & kMagnitude) residual_out[at] = SubZ(value, value);
  }
};

// The keys above a bound in the lower half, those equal to it in the upper one.
__device__ inline uint64_t Tally(bool above, bool tie) {
  return static_cast<uint64_t>(tie) << 32 | (above ? 1 : 0);
}

__device__ inline uint32_t AtMost(uint32_t most, uint32_t x) { return x < most ? x : most; }

// For each side: a Tally for each chunk, and for each stretch the Tally of all stretches before it.
template <int kSides>
struct Tallies {
  uint64_t *in_chunks[kSides], *before[kSides];
};

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

// The kernels name as many blocks at a time as leave each thread so many registers that ptxas of
// CUDA 13.0 spills none on any architecture; where they name none, it spills on some.

// A block computes acc of a stretch, writes it to `residual_out`, and counts the first digits of
// its keys.
template <class Item>
__global__ void __launch_bounds__(kThreads, Item::kBlocks)
    ComputeStretches(Table<Item> table, Search<Item>* searches, bool* finite) {
  __shared__ uint32_t bins[Search<Item>::kRankings][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  Search<Item>& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  DigitSearch<0, Item> digits(own, &search, bins);
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float acc[kEach];
    all &= own.Compute(chunk, from, search, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t bits = __float_as_uint(acc[j]);
      if ((bits & kMagnitude) >= Item::kLeastKey) digits.Count(chunk.At(from + j), bits);
    }
  }
  if (!all) *finite = false;
  if (!digits.EndsAsLast(StretchesOf(own.n))) return;
  uint32_t ranks[Search<Item>::kRankings];
  own.SetRanks(&search, ranks);
  digits.Find(ranks);
#pragma unroll
  for (int r = 0; r < Search<Item>::kRankings; ++r) {
    if (threadIdx.x == 0 && ranks[r] == 0) search.rankings[r].prefix = kNoDigit;
  }
}

// Marks the elements that can be sent, and those of the sample that the rest of its search needs;
// counts their second digits.
template <class Item>
__global__ void __launch_bounds__(kThreads, 4)
    MarkStretches(Table<Item> table, Search<Item>* searches, uint32_t* words) {
  __shared__ uint32_t bins[Search<Item>::kRankings][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  uint32_t* const marks = words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups;
  DigitSearch<1, Item> digits(own, searches + tensor, bins);
  for (int from = 0; from < chunk.groups; from += kEach) {
    uint32_t bits[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      bits[j] = at < own.n ? __float_as_uint(own.Acc(at)) : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      const uint32_t digit = (bits[j] & kMagnitude) >> Digit<0>::kLow;
      const bool of_sample = digits.Count(at, bits[j]);
      const bool marked = at < own.n && (digit >= digits.PrefixOf(bits[j]) || of_sample);
      const uint32_t word = __ballot_sync(kAllLanes, marked);
      if (Lane() == 0 && from + j < chunk.groups) marks[from + j] = word;
    }
  }
  if (digits.EndsAsLast(StretchesOf(own.n))) digits.Find(nullptr);
}

// Sets the bounds of what is sent, once the last keys that may be sent are known.
template <class Item>
__device__ void SetBounds(uint32_t floor, Search<Item>* search) {
#pragma unroll
  for (int side = 0; side < Item::kSides; ++side) {
    const Ranking& ranking = search->rankings[side];
    search->keys.of[side] = ranking.prefix >= floor ? ranking.prefix : floor - 1;
    search->ties.of[side] = ranking.prefix >= floor ? ranking.left : 0;
  }
}

// Counts the last digits of what is marked.
template <class Item>
__global__ void __launch_bounds__(kThreads, 4)
    RankStretches(Table<Item> table, Search<Item>* searches, const uint32_t* words,
                  KeyRange range) {
  __shared__ uint32_t bins[Search<Item>::kRankings][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  DigitSearch<2, Item> digits(own, searches + tensor, bins);
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t at, uint32_t bits, bool marked) {
                if (marked) digits.Count(at, bits);
              });
  if (!digits.EndsAsLast(StretchesOf(own.n))) return;
  digits.Find(nullptr);
  if (threadIdx.x == 0) own.EndRanks(range.floor, searches + tensor);
}

// Counts the elements that each chunk sends; the last block of a tensor turns the stretches' counts
// into the counts before each of them.
template <class Item>
__global__ void __launch_bounds__(kThreads, Item::kSides == 1 ? 4 : 3)
    CountStretches(Table<Item> table, Search<Item>* searches, const uint32_t* words, KeyRange range,
                   Tallies<Item::kSides> tallies, int32_t* counts) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  Search<Item>& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const auto bounds = search.keys;
  uint64_t found[Item::kSides] = {};
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude, bound = bounds.Of(bits);
                const bool fits = marked && key <= range.most;
                const uint64_t tally = Tally(fits && key > bound, fits && key == bound);
#pragma unroll
                for (int side = 0; side < Item::kSides; ++side) {
                  const bool of_side = Item::kSides == 1 || (bits >> 31) == uint32_t(side);
                  found[side] += of_side ? tally : 0;
                }
              });
#pragma unroll
  for (int side = 0; side < Item::kSides; ++side) {
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
  uint32_t written = 0;
#pragma unroll
  for (int side = 0; side < Item::kSides; ++side) {
    const uint64_t all = SumsBefore(tallies.before[side] + own.first, StretchesOf(own.n));
    written +=
        static_cast<uint32_t>(all) + AtMost(search.ties.of[side], static_cast<uint32_t>(all >> 32));
  }
  if (threadIdx.x != 0) return;
  search.written = written;
  if (counts) counts[tensor] = static_cast<int32_t>(written);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kSenders = 2;
#else
constexpr int kSenders = 3;
#endif

// Writes the sent elements to their places, and removes them from residual_out.
template <class Item>
__global__ void __launch_bounds__(kThreads, kSenders)
    SendStretches(Table<Item> table, const Search<Item>* searches, const uint32_t* words,
                  KeyRange range, Tallies<Item::kSides> tallies) {
  const int32_t tensor = table.Find(blockIdx.x);
  const Item own = table.items[tensor];
  const Search<Item>& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  const auto bounds = search.keys, ties = search.ties;
  uint32_t above_before = 0;
  BySide<uint32_t, Item::kSides> ties_before;
#pragma unroll
  for (int side = 0; side < Item::kSides; ++side) {
    uint64_t first = tallies.before[side][blockIdx.x];
    const uint64_t* const in_chunks = tallies.in_chunks[side] + blockIdx.x * int64_t{kWarps};
    for (int w = 0; w < WarpOf(); ++w) first += in_chunks[w];
    above_before += static_cast<uint32_t>(first);
    ties_before.of[side] = static_cast<uint32_t>(first >> 32);
  }
  VisitMarked(own, chunk, words + blockIdx.x * int64_t{kStretchWords} + WarpOf() * kGroups,
              [&](int64_t at, uint32_t bits, bool marked) {
                const uint32_t key = bits & kMagnitude, bound = bounds.Of(bits);
                const bool fits = marked && key <= range.most;
                const bool above = fits && key > bound, tie = fits && key == bound;
                const uint32_t all_above = __ballot_sync(kAllLanes, above);
                uint32_t to = above_before + __popc(all_above & LanesBefore());
                BySide<uint32_t, Item::kSides> own_ties;
#pragma unroll
                for (int side = 0; side < Item::kSides; ++side) {
                  const bool of_side = Item::kSides == 1 || (bits >> 31) == uint32_t(side);
                  const uint32_t all_ties = __ballot_sync(kAllLanes, tie && of_side);
                  own_ties.of[side] = ties_before.of[side] + __popc(all_ties & LanesBefore());
                  ties_before.of[side] += __popc(all_ties);
                  to += AtMost(ties.of[side], own_ties.of[side]);
                }
                if (above || (tie && own_ties.Of(bits) < ties.Of(bits))) {
                  own.values[to] = __uint_as_float(bits);
                  own.indices[to] = static_cast<int32_t>(at);
                  own.TakeOut(at, bits);
                }
                above_before += __popc(all_above);
              });
  // The entries beyond what is sent, shared out to the blocks of the tensor.
  const int64_t threads = StretchesOf(own.n) * kThreads;
  const int64_t thread = (blockIdx.x - own.first) * kThreads + threadIdx.x;
  for (int64_t i = search.written + thread; i < own.k; i += threads) {
    own.values[i] = 0.0f;
    own.indices[i] = 0;
  }
}

// The kernels of a selection from the tensors of a list, and their workspace.
template <class Item>
class ListSelection {
 public:
  ListSelection(Launch& launch, const EncodeInput* list, int64_t count, KeyRange range)
      : launch_(launch), list_(list), count_(count), range_(range) {
    for (int64_t i = 0; i < count; ++i) stretches_ += StretchesOf(list[i].n);
    items_ = launch.Take<Item>(count);
    searches_ = launch.Take<Search<Item>>(count);
    words_ = launch.Take<uint32_t>(stretches_ * kStretchWords);
    for (int side = 0; side < Item::kSides; ++side) {
      tallies_.in_chunks[side] = launch.Take<uint64_t>(stretches_ * kWarps);
      tallies_.before[side] = launch.Take<uint64_t>(stretches_);
    }
    static_assert(sizeof(Search<Item>) % 4 == 0);
    launch.Zero(reinterpret_cast<uint32_t*>(searches_), count * (sizeof *searches_ / 4));
  }

  int64_t stretches() const { return stretches_; }
  const Table<Item>& table() const { return table_; }

  // Sends the table. fill(i, item) adds to the item of a tensor, which has the members of Selected,
  // with its parts of `values` and `indices`.
  template <class Fill>
  void Send(float multiplier, const int64_t* ks, float* values, int32_t* indices, bool* finite,
            const Fill& fill) {
    const EncodeInput* const list = list_;
    int64_t at = 0;
    table_ = launch_.Send(
        items_, count_,
        [&](int64_t i, int64_t first) {
          Item item{};
          static_cast<Selected&>(item) = {{list[i].x, list[i].residual},
                                          list[i].residual_out,
                                          values + at,
                                          indices + at,
                                          list[i].n,
                                          first,
                                          ks[i],
                                          multiplier,
                                          0};
          fill(i, &item);
          at += ks[i];
          return item;
        },
        [=](int64_t i) { return StretchesOf(list[i].n); }, finite);
  }

  // Runs a kernel on all stretches.
  template <class Kernel, class... Arguments>
  void Run(Kernel kernel, Arguments... arguments) {
    launch_.Run(kernel, stretches_, kThreads, table_, searches_, arguments...);
  }

  // Finds the keys of the ranks.
  void Rank(bool* finite) {
    Run(ComputeStretches<Item>, finite);
    Run(MarkStretches<Item>, words_);
    Run(RankStretches<Item>, words_, range_);
  }

  // Writes what is within the bounds, and to `counts`, unless it is null, how many that are.
  void Write(int32_t* counts) {
    Run(CountStretches<Item>, words_, range_, tallies_, counts);
    Run(SendStretches<Item>, words_, range_, tallies_);
  }

  const uint32_t* words() const { return words_; }
  Search<Item>* searches() const { return searches_; }

 private:
  Launch& launch_;
  const EncodeInput* const list_;
  const int64_t count_;
  const KeyRange range_;
  int64_t stretches_ = 0;
  Item* items_;
  Search<Item>* searches_;
  uint32_t* words_;
  Tallies<Item::kSides> tallies_;
  Table<Item> table_{};
};

}  // namespace grace
