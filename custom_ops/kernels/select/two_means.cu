#include "kernels/base/device/launch.h"
#include "kernels/base/device/squares.h"
#include "kernels/select/device/sides.h"
#include "kernels/select/two_means.h"

namespace grace {
namespace {

// `values` is in the workspace.
struct SidesItem : Selected {
  float* means;
  uint32_t* signs;
  double* sums;         // of the pieces of its entries: of the positive side, of the negative one
  int64_t first_piece;  // of these pieces

  __device__ int64_t Pieces() const { return (k + kChunk - 1) / kChunk; }
};

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
  const uint64_t all = uint64_t{sizes.positive} + sizes.negative;
  if (all <= static_cast<uint64_t>(k)) return sizes;
  const auto positive =
      static_cast<uint32_t>((2 * static_cast<uint64_t>(k) * sizes.positive + all) / (2 * all));
  return {positive, static_cast<uint32_t>(k) - positive};
}

// A block computes acc of a stretch, writes it to `residual_out`, and counts the first digits of
// its keys.
__global__ void __launch_bounds__(kThreads)
    ComputeSides(Table<SidesItem> table, SideSearch* searches, int32_t* counts, bool* finite) {
  __shared__ uint32_t bins[2][kMostBins];
  const int32_t tensor = table.Find(blockIdx.x);
  const SidesItem own = table.items[tensor];
  SideSearch& search = searches[tensor];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  ClearSides(bins);
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float acc[kEach];
    all &= own.Compute(chunk, from, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t bits = __float_as_uint(acc[j]), key = bits & kMagnitude;
      if (key >= kSmallestNormal) CountKey<0>(key, 0, bins[bits >> 31]);
    }
  }
  if (!all) *finite = false;
  MergeSides<0>(bins, search.rankings);
  if (!ArrivesAsLast(search.arrived, StretchesOf(own.n))) return;
  const uint32_t positive = SizeOf(search.rankings[0]), negative = SizeOf(search.rankings[1]);
  const Sides shares = SharesOf({positive, negative}, own.k);
  FindDigits<0>(shares, search.rankings);
  if (threadIdx.x != 0) return;
  if (shares.positive == 0) search.rankings[0].prefix = kNoDigit;
  if (shares.negative == 0) search.rankings[1].prefix = kNoDigit;
  search.shares = shares;
  counts[tensor] = static_cast<int32_t>(search.Written());
}

// A block writes the signs of a piece of the entries, and 0 as the indices of those that are not
// used. The last block of a tensor finds its means.
__global__ void __launch_bounds__(kThreads)
    SumEntries(Table<SidesItem> table, SideSearch* searches) {
  const int32_t tensor = table.Find(blockIdx.x, &SidesItem::first_piece);
  const SidesItem own = table.items[tensor];
  SideSearch& search = searches[tensor];
  const int64_t piece = blockIdx.x - own.first_piece, pieces = own.Pieces();
  const uint32_t written = search.Written();
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
    if (at < own.k && !used) own.indices[at] = 0;
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
  own.means[0] = shares.positive ? static_cast<float>(own.sums[0] / shares.positive) : 0.0f;
  own.means[1] = shares.negative ? static_cast<float>(own.sums[pieces] / shares.negative) : 0.0f;
}

// Takes the means of what is sent out of what is kept.
__global__ void __launch_bounds__(kThreads)
    KeepRest(Table<SidesItem> table, const SideSearch* searches) {
  const int32_t tensor = table.Find(blockIdx.x, &SidesItem::first_piece);
  const SidesItem own = table.items[tensor];
  if (!own.residual_out) return;
  const int64_t begin = (blockIdx.x - own.first_piece) * kChunk;
  const uint32_t written = searches[tensor].Written();
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
  int64_t stretches = 0, pieces = 0, entries = 0;
  bool keeps = false;
  for (int64_t i = 0; i < count; ++i) {
    stretches += StretchesOf(sources[i].n);
    pieces += CeilDiv(ks[i], kChunk);
    entries += ks[i];
    keeps |= sources[i].residual_out != nullptr;
  }
  SidesItem* const items = launch.Take<SidesItem>(count);
  SideSearch* const searches = launch.Take<SideSearch>(count);
  uint32_t* const words = launch.Take<uint32_t>(stretches * kStretchWords);
  SideTallies tallies;
  for (int side = 0; side < 2; ++side) {
    tallies.in_chunks[side] = launch.Take<uint64_t>(stretches * kWarps);
    tallies.before[side] = launch.Take<uint64_t>(stretches);
  }
  float* const values = launch.Take<float>(entries);
  double* const sums = launch.Take<double>(2 * pieces);
  static_assert(sizeof *searches % 4 == 0);
  launch.Zero(reinterpret_cast<uint32_t*>(searches), count * (sizeof *searches / 4));
  if (launch.OnlyMeasures()) return 0;
  int64_t entry = 0, word = 0, piece = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        SidesItem item{};
        static_cast<Selected&>(item) = {{own.x, own.residual},
                                        own.residual_out,
                                        nullptr,
                                        values + entry,
                                        indices + entry,
                                        own.n,
                                        first,
                                        ks[i],
                                        multiplier,
                                        0};
        item.means = means + 2 * i;
        item.signs = signs + word;
        item.sums = sums + 2 * piece;
        item.first_piece = piece;
        entry += ks[i];
        word += PackedWords(ks[i], 1);
        piece += CeilDiv(ks[i], kChunk);
        return item;
      },
      [=](int64_t i) { return StretchesOf(sources[i].n); }, finite);
  launch.Run(ComputeSides, stretches, kThreads, table, searches, counts, finite);
  launch.Run(MarkSides<SidesItem>, stretches, kThreads, table, searches, words);
  launch.Run(RankSides<SidesItem>, stretches, kThreads, table, searches, words);
  launch.Run(CountSides<SidesItem>, stretches, kThreads, table, searches, words, tallies);
  launch.Run(SendSides<SidesItem>, stretches, kThreads, table, searches, words, tallies);
  launch.Run(SumEntries, pieces, kThreads, table, searches);
  if (keeps) launch.Run(KeepRest, pieces, kThreads, table, searches);
  return launch.error();
}
