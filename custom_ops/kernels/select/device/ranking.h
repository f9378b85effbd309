// The search for the key of a rank among many, exactly: three histograms, each of the keys that
// share the digits found so far.
#pragma once

#include <utility>

#include "kernels/base/device/stretches.h"

namespace grace {

// A key has 31 bits: the digits are its upper 11, the next 10 and the last 10.
constexpr int kMostBins = 2048;
template <int kDigit>
struct Digit {
  static constexpr int kLow = kDigit == 0 ? 20 : kDigit == 1 ? 10 : 0;
  static constexpr int kBits = kDigit == 0 ? 11 : 10;
  static constexpr int kBins = 1 << kBits;
  static constexpr int kFirst = kDigit == 0 ? 0 : kDigit == 1 ? 2048 : 3072;  // in Ranking::bins
};

// The state of the search for one rank. All of it begins at 0.
struct Ranking {
  uint32_t bins[4096];
  uint32_t prefix;  // the digits found so far; in the end the key
  uint32_t left;    // the rank among the keys that begin with them; in the end: among equal ones
};

// Makes a block's own bins 0; a barrier must follow.
__device__ inline void ClearBins(uint32_t* bins) {
  for (int i = threadIdx.x; i < kMostBins; i += kThreads) bins[i] = 0;
}

// Counts a key that begins with the prefix. A search that ends in no other bin ends in the lowest
// one, so that bin needs no count; most zeros of gradients would be in it.
template <int kDigit>
__device__ void CountKey(uint32_t key, uint32_t prefix, uint32_t* bins) {
  using Own = Digit<kDigit>;
  const uint32_t bin = key >> Own::kLow & (Own::kBins - 1);
  if (key >> (Own::kLow + Own::kBits) == prefix && bin != 0) atomicAdd(bins + bin, 1u);
}

// Adds a block's own bins to those of all blocks.
template <int kDigit>
__device__ void MergeBins(const uint32_t* bins, Ranking* ranking) {
  __syncthreads();
  for (int i = threadIdx.x; i < Digit<kDigit>::kBins; i += kThreads) {
    if (bins[i]) atomicAdd(ranking->bins + Digit<kDigit>::kFirst + i, bins[i]);
  }
}

// Finds the next digit of the key with this rank, 1 being the largest key's, by one block. After it
// every thread sees the digit.
template <int kDigit>
__device__ void FindDigit(uint32_t rank, Ranking* ranking) {
  using Own = Digit<kDigit>;
  constexpr int kOwn = Own::kBins / kThreads;
  // A thread has kOwn bins, the first thread the highest ones.
  const int highest = Own::kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
  uint32_t counts[kOwn], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    counts[i] = __ldcg(ranking->bins + Own::kFirst + highest - i);
    sum += counts[i];
  }
  const uint32_t prefix = ranking->prefix;
  uint32_t above = SumBefore(sum, &total);
  __syncthreads();
  if (above < rank && above + sum >= rank) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (!found && above + counts[i] >= rank) {
        found = true;
        ranking->prefix = prefix << Own::kBits | static_cast<uint32_t>(highest - i);
        ranking->left = rank - above;
      }
      above += counts[i];
    }
  }
  if (threadIdx.x == 0 && total < rank) {
    ranking->prefix = prefix << Own::kBits;
    ranking->left = rank - total;
  }
  __syncthreads();
}

// A number for all elements, or one for those of each sign, the positive ones first.
template <class T, int kSides>
struct BySide {
  T of[kSides];

  __device__ T Of(uint32_t bits) const {
    return kSides == 2 && bits & kSignBit ? of[kSides - 1] : of[0];
  }
};

// What the kernels of one selection find out about a tensor. All of it begins at 0.
template <class Item>
struct Search : Item::Found {
  static constexpr int kSides = Item::kSides;
  static constexpr int kRankings = Item::kSampled ? 2 : kSides;

  Ranking rankings[kRankings];  // of the sides, or the tensor's and its sample's
  uint32_t arrived[6];
  // Sent are the keys above `keys`, and the first `ties` equal to it.
  BySide<uint32_t, kSides> keys, ties;
  uint32_t written;

  __device__ BySide<uint32_t, kRankings> Prefixes() const {
    BySide<uint32_t, kRankings> prefixes;
#pragma unroll
    for (int r = 0; r < kRankings; ++r) prefixes.of[r] = rankings[r].prefix;
    return prefixes;
  }
};

// The first digit where the rank is 0. No key begins with it, so that none is marked.
constexpr uint32_t kNoDigit = Digit<0>::kBins;

// The search of one digit in all rankings of a tensor, by the blocks of its stretches.
template <int kDigit, class Item>
class DigitSearch {
 public:
  using Membership = decltype(std::declval<Item>().Membership());
  static constexpr int kRankings = Search<Item>::kRankings;

  // The bins of a block become 0, with a barrier.
  __device__ DigitSearch(const Item& own, Search<Item>* search, uint32_t (*bins)[kMostBins])
      : search_(search), bins_(bins), membership_(own.Membership()) {
    if (kDigit > 0) prefixes_ = search->Prefixes();
#pragma unroll
    for (int r = 0; r < kRankings; ++r) ClearBins(bins[r]);
    __syncthreads();
  }

  // The digits before this one of an element's ranking.
  __device__ uint32_t PrefixOf(uint32_t bits) const {
    return Item::kSides == 2 ? prefixes_.Of(bits) : prefixes_.of[0];
  }

  // Counts an element if its key begins as the one that is searched for. Returns whether it is of
  // the sample and begins as the sample's.
  __device__ bool Count(int64_t at, uint32_t bits) {
    const uint32_t key = bits & kMagnitude;
    CountKey<kDigit>(key, PrefixOf(bits), bins_[Item::kSides == 2 ? bits >> 31 : 0]);
    if constexpr (Item::kSampled) {
      const uint32_t prefix = prefixes_.of[1];
      if (key >> (Digit<kDigit>::kLow + Digit<kDigit>::kBits) != prefix) return false;
      if (!membership_.Has(at)) return false;
      CountKey<kDigit>(key, prefix, bins_[1]);
      return true;
    }
    return false;
  }

  // Adds a block's bins to those of all blocks. Returns whether it is the last block to do so.
  __device__ bool EndsAsLast(int64_t stretches) {
#pragma unroll
    for (int r = 0; r < kRankings; ++r) MergeBins<kDigit>(bins_[r], search_->rankings + r);
    return ArrivesAsLast(search_->arrived + kDigit, stretches);
  }

  // Finds the digits, by the last block: those of these ranks, or of what is left of the ranks.
  __device__ void Find(const uint32_t* ranks) {
#pragma unroll
    for (int r = 0; r < kRankings; ++r) {
      FindDigit<kDigit>(ranks ? ranks[r] : search_->rankings[r].left, search_->rankings + r);
    }
  }

 private:
  Search<Item>* const search_;
  uint32_t (*const bins_)[kMostBins];
  BySide<uint32_t, kRankings> prefixes_{};
  const Membership membership_;
};

}  // namespace grace
