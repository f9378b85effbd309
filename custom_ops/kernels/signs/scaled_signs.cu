// The first pass packs the signs and adds up each chunk. Cells that lie within one chunk are then
// complete. For larger cells a kernel joins the sums of the chunks to levels, and a second pass
// computes acc again and subtracts what its sign and level stand for.
#include "kernels/base/device/halves.h"
#include "kernels/base/device/launch.h"
#include "kernels/signs/device/scaled_signs.h"
#include "kernels/signs/scaled_signs.h"

namespace grace {
namespace {

// Sums kColumnRows rows of kStrip columns.
__device__ void SumPatch(const ScaledItem& own, int64_t patch, float multiplier,
                         const SumRooms& sums) {
  __shared__ int32_t lows[kStrip];
  const int64_t columns = own.cells.columns, strips = (columns + kStrip - 1) / kStrip;
  const int64_t band = patch / strips, row = band * kColumnRows;
  const int64_t column = patch % strips * kStrip + threadIdx.x % kStrip;
  const int64_t rows = own.n / columns;
  float acc[kEach];
  bool has[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t r = row + StridedPlace(k) / kStrip;
    has[k] = r < rows && column < columns;
  }
  const auto place = [=](int k) { return (row + StridedPlace(k) / kStrip) * columns + column; };
  own.source.Gather<kEach>([&](int k) { return has[k]; }, place, multiplier, 0.0f, acc);
  const int64_t at = own.sums + band * columns + column;
  const bool writes = threadIdx.x < kStrip && column < columns;
  double values[kEach];
  if (own.low) {
    if (threadIdx.x < kStrip) lows[threadIdx.x] = 0;
    int32_t count = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      count += has[k] && !NotNegativeBits(acc[k]);
      values[k] = OfSide(acc[k], false);
    }
    HalveBlocks(kChunk, kStrip, values);
    if (writes) sums.low[at] = values[0];
    atomicAdd(&lows[threadIdx.x % kStrip], count);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) values[k] = own.low ? OfSide(acc[k], true) : Magnitude(acc[k]);
  HalveBlocks(kChunk, kStrip, values);
  if (!writes) return;
  sums.high[at] = values[0];
  if (own.low) sums.lows[at] = lows[threadIdx.x];
}

// The first pass: signs, and the sums of a chunk, or the levels of its cells and the residual.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(3, 2))
    EncodePieces(Table<ScaledItem> table, float multiplier, SumRooms sums, bool* finite) {
  __shared__ int32_t lows[kChunk / kGroup];
  __shared__ Levels levels[kChunk / kGroup];
  const ScaledItem own = table.items[table.Find(blockIdx.x)];
  const int64_t piece = blockIdx.x - own.first, begin = piece * kChunk;
  if (own.ByColumn()) return SumPatch(own, piece, multiplier, sums);
  const int64_t left = own.n - begin;
  const int n = static_cast<int>(left < kChunk ? left : kChunk);
  const bool small = own.Small();
  const int log = small ? own.cells.log : kChunkLog;
  if (threadIdx.x < kChunk / kGroup) lows[threadIdx.x] = 0;
  __syncthreads();
  float acc[kEach];
  own.source.Gather<kEach>([=](int k) { return StridedPlace(k) < n; },
                           [=](int k) { return begin + StridedPlace(k); }, multiplier, 0.0f, acc);
  bool all = true;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int at = StridedPlace(k), group = at - Lane();
    all &= IsFinite(acc[k]);
    const uint32_t word = __ballot_sync(kAllLanes, at < n && NotNegativeBits(acc[k]));
    if (Lane() != 0 || group >= n) continue;
    own.words[(begin + group) / kGroup] = word;
    atomicAdd(&lows[group >> log], (n - group < kGroup ? n - group : kWarp) - __popc(word));
  }
  if (!all) *finite = false;
  double values[kEach], low = 0.0;
  if (own.low) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) values[k] = OfSide(acc[k], false);
    HalveBlocks(1 << log, kWarp, values);
    low = HalveWarp(values);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) values[k] = own.low ? OfSide(acc[k], true) : Magnitude(acc[k]);
  HalveBlocks(1 << log, kWarp, values);
  const double high = HalveWarp(values);
  __syncthreads();
  // The element whose sum this lane has; it counts where it is the first of its cell.
  const int at = Lane() / 4 * kThreads + WarpOf() * kWarp, cell = at >> log;
  const bool counts = Lane() % 4 == 0 && at < n && at % (1 << log) == 0;
  if (!small) {
    if (!counts) return;
    sums.high[own.sums + piece] = high;
    if (own.low) sums.low[own.sums + piece] = low, sums.lows[own.sums + piece] = lows[0];
    return;
  }
  if (counts) {
    const int size = n - at < 1 << log ? n - at : 1 << log;
    levels[cell] = SetLevels(own, (begin >> log) + cell, low, high, lows[cell], size);
  }
  if (!own.residual_out) return;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int place = StridedPlace(k);
    if (place < n) own.residual_out[begin + place] = levels[place >> log].Without(acc[k]);
  }
}

// The chunks of a cell, filled up to a power of two; and those that a block joins.
constexpr int64_t kJoined = kThreads;
inline __device__ __host__ int64_t ChunksOfCell(int32_t log, int64_t chunks) {
  int64_t power = 1;
  while (power < chunks && power * kChunk < int64_t{1} << log) power *= 2;
  return power;
}

__device__ void AddSums(const SumRooms& sums, bool sides, int64_t from, int64_t to) {
  sums.high[to] += sums.high[from];
  if (!sides) return;
  sums.low[to] += sums.low[from];
  sums.lows[to] += sums.lows[from];
}

__device__ Levels SetLevels(const ScaledItem& own, int64_t cell, const SumRooms& sums, int64_t at,
                            int64_t n) {
  return SetLevels(own, cell, own.low ? sums.low[at] : 0.0, sums.high[at],
                   own.low ? sums.lows[at] : 0, n);
}

// Joins the bands of kStrip columns.
__device__ void JoinColumns(const ScaledItem& own, int64_t strip, const SumRooms& sums) {
  const int64_t columns = own.cells.columns, rows = own.n / columns;
  const int64_t bands = (rows + kColumnRows - 1) / kColumnRows;
  const int64_t column = strip * kStrip + threadIdx.x % kStrip;
  int64_t half = 1;
  while (2 * half < bands) half *= 2;
  for (; half > 0; half /= 2) {
    for (int64_t r = threadIdx.x / kStrip; r < half; r += kThreads / kStrip) {
      const int64_t to = own.sums + r * columns + column;
      if (r + half < bands && column < columns) AddSums(sums, own.low, to + half * columns, to);
    }
    __syncthreads();
  }
  if (threadIdx.x >= kStrip || column >= columns) return;
  if (rows > 0) {
    SetLevels(own, column, sums, own.sums + column, rows);
  } else {
    SetLevels(own, column, 0.0, 0.0, 0, 1);
  }
}

__global__ void __launch_bounds__(kThreads) JoinSums(Table<ScaledItem> table, SumRooms sums) {
  const ScaledItem own = table.items[table.Find(blockIdx.x, &ScaledItem::first_unit)];
  const int64_t unit = blockIdx.x - own.first_unit;
  if (own.ByColumn()) return JoinColumns(own, unit, sums);
  const int64_t chunks = (own.n + kChunk - 1) / kChunk, size = ChunksOfCell(own.cells.log, chunks);
  const int64_t span = size > kJoined ? size : kJoined, begin = unit * span;
  const int64_t count = chunks - begin < span ? chunks - begin : span;
  for (int64_t half = size / 2; half > 0; half /= 2) {
    for (int64_t j = threadIdx.x; j < span / size * half; j += kThreads) {
      const int64_t to = j / half * size + j % half;
      if (to + half < count) {
        AddSums(sums, own.low, own.sums + begin + to + half, own.sums + begin + to);
      }
    }
    __syncthreads();
  }
  for (int64_t to = threadIdx.x * size; to < count; to += kThreads * size) {
    const int64_t left = own.n - (begin + to) * kChunk;
    SetLevels(own, (begin + to) / size, sums, own.sums + begin + to,
              left < size * kChunk ? left : size * kChunk);
  }
}

// The second pass: the residual, and the signs where cells are columns.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(6, 4))
    KeepChunks(Table<ScaledItem> table, float multiplier, bool* finite) {
  const ScaledItem own = table.items[table.Find(blockIdx.x, &ScaledItem::first_chunk)];
  const int64_t begin = (blockIdx.x - own.first_chunk) * kChunk;
  const int64_t n = own.n - begin < kChunk ? own.n - begin : kChunk;
  const PieceCells cells(own.cells, begin);
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, -1.0f, acc);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int at = PlaceOf(j);
    const uint32_t word = __ballot_sync(kAllLanes, NotNegativeBits(acc[j]));
    if (own.ByColumn() && Lane() == 0 && at < n) own.words[(begin + at) / kGroup] = word;
    if (!own.residual_out || at >= n) continue;
    const int64_t cell = cells.Of(at);
    const float high = own.high[cell];
    own.residual_out[begin + at] =
        Levels{own.low ? own.low[cell] : 0.0f - high, high}.Without(acc[j]);
  }
  if (own.ByColumn()) NotePiece(acc, n, finite);
}

// How many pieces, units, chunks and sums a tensor has.
struct ScaledCounts {
  ScaledCounts(const EncodeInput& source, const Cells& cells) {
    const int64_t columns = cells.columns;
    pieces = CeilDiv(source.n, kChunk);
    if (columns > 1) {
      const int64_t bands = CeilDiv(source.n / columns, kColumnRows);
      units = CeilDiv(columns, kStrip);
      chunks = pieces;
      pieces = bands * units;
      sums = bands * columns;
    } else if (pieces > 1 && (cells.block == 0 || cells.block > kChunk)) {
      const int64_t size = ChunksOfCell(DeviceCells::From(cells).log, pieces);
      units = CeilDiv(pieces, std::max(size, kJoined));
      chunks = source.residual_out ? pieces : 0;
      sums = pieces;
    }
  }
  int64_t pieces, units = 0, chunks = 0, sums = 0;
};

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_scaled_sign_list(const EncodeInput* sources, int64_t count,
                                             float multiplier, const Cells* cells,
                                             const ScaledSigns* parts, bool* finite,
                                             void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t all_sums = 0;
  for (int64_t i = 0; i < count; ++i) all_sums += ScaledCounts(sources[i], cells[i]).sums;
  const int64_t low_sums = count > 0 && parts[0].low ? all_sums : 0;
  ScaledItem* const items = launch.Take<ScaledItem>(count);
  double* const high = launch.Take<double>(all_sums);
  double* const low = launch.Take<double>(low_sums);
  const SumRooms sums{low, high, launch.Take<int64_t>(low_sums)};
  if (launch.OnlyMeasures()) return 0;
  int64_t units = 0, chunks = 0, sums_at = 0;
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        const ScaledCounts counts(own, cells[i]);
        ScaledItem item{{own.x, own.residual},
                        own.residual_out,
                        parts[i].words,
                        parts[i].low,
                        parts[i].high,
                        DeviceCells::From(cells[i]),
                        own.n,
                        first,
                        units,
                        chunks,
                        sums_at};
        // A tensor of one chunk is finished in the first pass.
        if (counts.pieces <= 1 && cells[i].columns <= 1) {
          item.cells.log = std::min(item.cells.log, kChunkLog);
        }
        units += counts.units;
        chunks += counts.chunks;
        sums_at += counts.sums;
        return item;
      },
      [=](int64_t i) { return ScaledCounts(sources[i], cells[i]).pieces; }, finite);
  launch.Run(EncodePieces, table.pieces, kThreads, table, multiplier, sums, finite);
  launch.Run(JoinSums, units, kThreads, table, sums);
  launch.Run(KeepChunks, chunks, kThreads, table, multiplier, finite);
  return launch.error();
}
