// How: a first pass counts bins, most of them in shared memory, and finds ids and means; a second
// one writes ids and residuals. One block does all of that for a tensor of one piece.
#include "kernels/base/device/last_block.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/device/quantile_bins.h"
#include "kernels/codes/quantiles.h"

namespace grace {
namespace {

struct QuantileItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* words;
  float* means;
  DeviceBins bins;
  uint32_t* arrived;
  int64_t n;
  int64_t first;        // of pieces of kGrain
  int64_t first_chunk;  // of chunks of the second pass

  __device__ int64_t Pieces() const { return (n + kGrain - 1) / kGrain; }
};

// The bins that a block counts by itself: those of some neighbouring exponents, of both signs.
constexpr int kWindowRows = 16;
struct Window {
  uint32_t counts[2 * kWindowRows * kRow], sums[2 * kWindowRows * kRow];
};

__device__ void AddTo(const DeviceBins& bins, uint32_t bin, uint32_t count, uint32_t sum) {
  if (count == 0) return;
  atomicAdd(&bins.counts[bin], count);
  atomicAdd(&bins.sums[bin], static_cast<unsigned long long>(sum));
}

// Counts the elements of a piece, which begins at `begin`. Of kGrain elements a sum of lower halves
// fits into 32 bits.
__device__ void CountPiece(const QuantileItem& own, int64_t begin, int64_t end, float multiplier) {
  __shared__ Window window;
  for (int i = threadIdx.x; i < 2 * kWindowRows * kRow; i += kThreads) {
    window.counts[i] = window.sums[i] = 0;
  }
  uint32_t zeros = 0;
  int lowest = 0;
  for (int64_t at = begin; at < end; at += kChunk) {
    float acc[kEach];
    LoadPiece(own.source, multiplier, at, end - at, 0.0f, acc);
    if (at == begin) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t magnitude = QuantileBits(acc[j]) & kMagnitude;
        largest = largest < magnitude ? magnitude : largest;
      }
      // The window ends above the largest exponent of the first chunk.
      lowest = static_cast<int>(JoinBlock(largest, Maximum()) >> 23) + 2 - kWindowRows;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (at + PlaceOf(j) >= end) continue;
      const uint32_t bits = QuantileBits(acc[j]), bin = bits >> 16, lower = bits & 0xffff;
      const int row = static_cast<int>(bin % (kBins / 2) / kRow) - lowest;
      if (bits == 0) {
        ++zeros;
      } else if (row >= 0 && row < kWindowRows) {
        const int side = bits >> 31 ? kWindowRows : 0;
        const auto slot = static_cast<int>((side + row) * kRow + bin % kRow);
        atomicAdd(&window.counts[slot], 1u);
        atomicAdd(&window.sums[slot], lower);
      } else {
        AddTo(own.bins, bin, 1, lower);
      }
    }
  }
  zeros = JoinBlock(zeros, Total());
  if (threadIdx.x == 0) AddTo(own.bins, 0, zeros, 0);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * kWindowRows * kRow; i += kThreads) {
    const auto row = static_cast<int>(i / kRow);
    const int side = row / kWindowRows, exponent = lowest + row % kWindowRows;
    const int64_t bin = (side * kSideRows + exponent) * kRow + i % kRow;
    AddTo(own.bins, static_cast<uint32_t>(bin), window.counts[i], window.sums[i]);
  }
}

// Finds which rows a tensor of one piece uses, and makes these zero.
__device__ void ClearRows(const QuantileItem& own, float multiplier, bool* used) {
  used[threadIdx.x] = used[threadIdx.x + kSideRows] = threadIdx.x == 0;
  __syncthreads();
  for (int64_t at = threadIdx.x; at < own.n; at += kThreads) {
    used[QuantileBits(own.source.At(at, multiplier)) >> 23] = true;
  }
  __syncthreads();
  VisitRows(used, [&](int row) {
    for (int b = 0; b < kOwnBins; ++b) {
      const int64_t bin = row * kRow + b * kWarp + Lane();
      own.bins.counts[bin] = 0;
      own.bins.sums[bin] = 0;
    }
  });
}

// Writes the ids of a chunk and its residual.
__device__ void EncodeChunk(const QuantileItem& own, int64_t begin, float multiplier, int32_t bits,
                            bool* finite) {
  const int64_t n = own.n - begin < kChunk ? own.n - begin : kChunk;
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = PlaceOf(j), group = begin / kGroup + (at - Lane()) / kGroup;
    const uint32_t id = at < n ? own.bins.ids[QuantileBits(acc[j]) >> 16] : 0;
    uint32_t plane = 0;
    for (int32_t p = 0; p < bits; ++p) {
      const uint32_t word = __ballot_sync(kAllLanes, id >> p & 1);
      if (Lane() == p) plane = word;
    }
    if (Lane() < bits && at - Lane() < n) own.words[group * bits + Lane()] = plane;
    if (own.residual_out && at < n) own.residual_out[begin + at] = SubZ(acc[j], own.means[id]);
  }
}

__global__ void __launch_bounds__(kThreads)
    CountPieces(Table<QuantileItem> table, float multiplier, Quantiles quantiles, int32_t bits,
                bool* finite) {
  __shared__ bool used[kRows];
  const QuantileItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kGrain, pieces = own.Pieces();
  const int64_t end = begin + kGrain < own.n ? begin + kGrain : own.n;
  if (pieces <= 1) {
    ClearRows(own, multiplier, used);
  } else {
    used[threadIdx.x] = used[threadIdx.x + kSideRows] = true;
  }
  __syncthreads();
  CountPiece(own, begin, end, multiplier);
  if (pieces > 1 && !ArrivesAsLast(own.arrived, pieces)) return;
  __threadfence();
  __syncthreads();
  AssignBins(own.bins, used, quantiles, own.means);
  if (pieces > 1) return;
  __syncthreads();
  for (int64_t at = 0; at < own.n; at += kChunk) EncodeChunk(own, at, multiplier, bits, finite);
}

__global__ void __launch_bounds__(kThreads, 4)
    EncodeIds(Table<QuantileItem> table, float multiplier, int32_t bits, bool* finite) {
  const QuantileItem own = table.items[table.Find(blockIdx.x, &QuantileItem::first_chunk)];
  EncodeChunk(own, (blockIdx.x - own.first_chunk) * kChunk, multiplier, bits, finite);
}

struct MeansItem {
  float* total;
  int64_t n, first, words_at, means_at;
};

__global__ void __launch_bounds__(kThreads)
    SumPieces(Table<MeansItem> table, QuantileRows rows, int64_t words_size, int32_t buckets,
              int32_t bits, float factor, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float sums[kEach] = {};
  for (int64_t w = 0; w < rows.workers; ++w) {
    const uint32_t* const words = rows.words + w * words_size + own.words_at;
    const float* const means = rows.means + w * table.count * buckets + own.means_at;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) >= n) continue;
      const uint32_t* const group = words + (begin + PlaceOf(j)) / kGroup * bits;
      int32_t id = 0;
      for (int32_t p = 0; p < bits; ++p) id |= static_cast<int32_t>(group[p] >> Lane() & 1) << p;
      sums[j] = AddZ(sums[j], PlainFlush(means[id < buckets ? id : buckets - 1]));
    }
  }
  StoreTotals(sums, factor, n, own.total + begin, finite);
}

// A tensor without elements has a piece, which writes its means.
int64_t PiecesOf(int64_t n) { return n > 0 ? CeilDiv(n, kGrain) : 1; }

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_decode_quantiles(const DecodeOutput* targets, int64_t count,
                                             const QuantileRows* rows, int32_t buckets,
                                             float factor, bool* finite, void* workspace,
                                             size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  MeansItem* const items = launch.Take<MeansItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const int32_t bits = IdBits(buckets);
  int64_t words = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const MeansItem item{targets[i].total, targets[i].n, first, words, i * buckets};
        words += PackedWords(targets[i].n, bits);
        return item;
      },
      finite);
  launch.Run(SumPieces, table.pieces, kThreads, table, *rows, words, buckets, bits, factor, finite);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_encode_quantiles(const EncodeInput* sources, int64_t count,
                                             float multiplier, Quantiles quantiles, uint32_t* words,
                                             float* means, bool* finite, void* workspace,
                                             size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  QuantileItem* const items = launch.Take<QuantileItem>(count);
  uint8_t* const ids = launch.Take<uint8_t>(count * kBins);
  // Those of tensors of several pieces come first: they must be zero.
  int64_t large = 0;
  for (int64_t i = 0; i < count; ++i) large += sources[i].n > kGrain;
  const int64_t zero_bytes = large * (kBins * 12 + 4);
  char* const bins = launch.Take<char>(zero_bytes + 8 + (count - large) * kBins * 12);
  if (launch.OnlyMeasures()) return 0;
  launch.Zero(reinterpret_cast<uint32_t*>(bins), zero_bytes / 4);
  // All sums, then all counts, then what has arrived: the small tensors' behind all of those.
  auto* const sums = reinterpret_cast<unsigned long long*>(bins);
  auto* const counts = reinterpret_cast<uint32_t*>(sums + large * kBins);
  uint32_t* const arrived = counts + large * kBins;
  char* const small = bins + zero_bytes + zero_bytes % 8;
  auto* const small_sums = reinterpret_cast<unsigned long long*>(small);
  auto* const small_counts = reinterpret_cast<uint32_t*>(small_sums + (count - large) * kBins);
  const int32_t bits = IdBits(quantiles.buckets);
  int64_t larges = 0, smalls = 0, chunks = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        const bool is_large = own.n > kGrain;
        const DeviceBins own_bins{
            is_large ? counts + larges * kBins : small_counts + smalls * kBins,
            is_large ? sums + larges * kBins : small_sums + smalls * kBins, ids + i * kBins};
        const QuantileItem item{{own.x, own.residual},
                                own.residual_out,
                                words,
                                means + i * quantiles.buckets,
                                own_bins,
                                arrived + larges,
                                own.n,
                                first,
                                chunks};
        words += PackedWords(own.n, bits);
        (is_large ? larges : smalls) += 1;
        if (is_large) chunks += CeilDiv(own.n, kChunk);
        return item;
      },
      [=](int64_t i) { return PiecesOf(sources[i].n); }, finite);
  launch.Run(CountPieces, table.pieces, kThreads, table, multiplier, quantiles, bits, finite);
  launch.Run(EncodeIds, chunks, kThreads, table, multiplier, bits, finite);
  return launch.error();
}
