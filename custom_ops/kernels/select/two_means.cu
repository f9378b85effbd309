#include "kernels/base/device/launch.h"
#include "kernels/base/device/squares.h"
#include "kernels/select/device/select.h"
#include "kernels/select/two_means.h"

namespace grace {
namespace {

using Sides = BySide<uint32_t, 2>;

// How many elements a side has, from the counts of their first digits. Only digits of 0 are not
// counted, see CountKey, and only denormals have them.
static_assert(kSmallestNormal >> Digit<0>::kLow > 0);
__device__ uint32_t SizeOf(const Ranking& ranking) {
  uint32_t size = 0;
  for (int i = threadIdx.x; i < Digit<0>::kBins; i += kThreads) size += __ldcg(ranking.bins + i);
  return JoinBlock(size, Total());
}

// As Shares of two_means.cc.
__device__ Sides SharesOf(const Sides& sizes, int64_t k) {
  const uint64_t all = uint64_t{sizes.of[0]} + sizes.of[1];
  if (all <= static_cast<uint64_t>(k)) return sizes;
  const auto positive =
      static_cast<uint32_t>((2 * static_cast<uint64_t>(k) * sizes.of[0] + all) / (2 * all));
  return {{positive, static_cast<uint32_t>(k) - positive}};
}

// `values` is in the workspace.
struct SidesItem : Selected {
  static constexpr int kSides = 2, kBlocks = 1;
  static constexpr bool kSampled = false;
  static constexpr uint32_t kLeastKey = kSmallestNormal;
  struct Found {
    Sides shares;
  };

  float* means;
  uint32_t* signs;
  double* sums;         // of the pieces of its entries: of the positive side, of the negative one
  int64_t first_piece;  // of these pieces

  __device__ int64_t Pieces() const { return (k + kChunk - 1) / kChunk; }

  template <class Search>
  __device__ void SetRanks(Search* search, uint32_t* ranks) const {
    const uint32_t positive = SizeOf(search->rankings[0]), negative = SizeOf(search->rankings[1]);
    const Sides shares = SharesOf({{positive, negative}}, k);
    ranks[0] = shares.of[0];
    ranks[1] = shares.of[1];
    if (threadIdx.x == 0) search->shares = shares;
  }

  // What stands in the place of what is sent is known later, see KeepRest.
  __device__ void TakeOut(int64_t, uint32_t) const {}
};

// A block writes the signs of a piece of the entries. The last block of a tensor finds its means.
__global__ void __launch_bounds__(kThreads)
    SumEntries(Table<SidesItem> table, Search<SidesItem>* searches) {
  const int32_t tensor = table.Find(blockIdx.x, &SidesItem::first_piece);
  const SidesItem own = table.items[tensor];
  Search<SidesItem>& search = searches[tensor];
  const int64_t piece = blockIdx.x - own.first_piece, pieces = own.Pieces();
  const uint32_t written = search.written;
  double positive[kEach], negative[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = piece * kChunk + PlaceOf(j);
    const bool used = at < written;
    const float value = used ? own.values[at] : 0.0f;
    const bool below = __float_as_uint(value) & kSignBit;
    positive[j] = below ? 0.0 : static_cast<double>(value);
    negative[j] = below ? static_cast<double>(value) : 0.0;
    const uint32_t word = __ballot_sync(kAllLanes, used && !below);
    if (at < own.k && Lane() == 0) own.signs[at / kGroup] = word;
  }
  const double above_zero = SumPairs(positive), below_zero = SumPairs(negative);
  if (threadIdx.x == 0) {
    own.sums[piece] = above_zero;
    own.sums[pieces + piece] = below_zero;
  }
  if (!ArrivesAsLast(search.arrived + 4, pieces)) return;
  JoinPairs(own.sums, pieces);
  JoinPairs(own.sums + pieces, pieces);
  if (threadIdx.x != 0) return;
  const Sides shares = search.shares;
  own.means[0] = shares.of[0] ? static_cast<float>(own.sums[0] / shares.of[0]) : 0.0f;
  own.means[1] = shares.of[1] ? static_cast<float>(own.sums[pieces] / shares.of[1]) : 0.0f;
}

// Subtracts the means of what is sent from the residual.
__global__ void __launch_bounds__(kThreads)
    KeepRest(Table<SidesItem> table, const Search<SidesItem>* searches) {
  const int32_t tensor = table.Find(blockIdx.x, &SidesItem::first_piece);
  const SidesItem own = table.items[tensor];
  if (!own.residual_out) return;
  const int64_t begin = (blockIdx.x - own.first_piece) * kChunk;
  const uint32_t written = searches[tensor].written;
  const float positive = own.means[0], negative = own.means[1];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    if (at >= written) continue;
    const float value = own.values[at];
    const bool below = __float_as_uint(value) & kSignBit;
    own.residual_out[own.indices[at]] = SubZ(value, below ? negative : positive);
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_two_means_list(const EncodeInput* sources, int64_t count,
                                           float multiplier, const int64_t* ks, float* means,
                                           uint32_t* signs, int32_t* indices, int32_t* counts,
                                           bool* finite, void* workspace, size_t* bytes,
                                           void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t pieces = 0, entries = 0;
  bool keeps = false;
  for (int64_t i = 0; i < count; ++i) {
    pieces += CeilDiv(ks[i], kChunk);
    entries += ks[i];
    keeps |= sources[i].residual_out != nullptr;
  }
  ListSelection<SidesItem> selection(launch, sources, count, {kSmallestNormal, kMagnitude});
  float* const values = launch.Take<float>(entries);
  double* const sums = launch.Take<double>(2 * pieces);
  if (launch.OnlyMeasures()) return 0;
  int64_t word = 0, piece = 0;
  selection.Send(multiplier, ks, values, indices, finite, [&](int64_t i, SidesItem* item) {
    item->means = means + 2 * i;
    item->signs = signs + word;
    item->sums = sums + 2 * piece;
    item->first_piece = piece;
    word += PackedWords(ks[i], 1);
    piece += CeilDiv(ks[i], kChunk);
  });
  selection.Rank(finite);
  selection.Write(counts);
  launch.Run(SumEntries, pieces, kThreads, selection.table(), selection.searches());
  if (keeps) launch.Run(KeepRest, pieces, kThreads, selection.table(), selection.searches());
  return launch.error();
}
