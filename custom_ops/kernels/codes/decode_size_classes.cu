// How: a first pass reads the tags, which tell where the numbers of each chunk begin; a second one
// adds up the workers' numbers.
#include "kernels/base/device/last_block.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/device/size_classes.h"

namespace grace {
namespace {

struct DecodedItem {
  float* total;
  int64_t n, chunks;
  int64_t first;                  // of its chunks
  int64_t first_unit;             // of what blocks count of them
  int64_t words;                  // of its numbers
  int64_t tags, numbers, counts;  // where its parts begin in a row

  __device__ int64_t Units() const { return (chunks + kCounted - 1) / kCounted; }
};

// The rows of all workers, and the lengths of one.
struct ClassRows {
  const uint32_t *tags, *numbers;
  const int32_t* counts;
  int64_t tags_size, numbers_size, counts_size, workers;
};

// The tags of a group, as its two planes; none beyond `left` elements.
struct Tags {
  uint32_t low, high;

  __device__ Tags(const uint32_t* tags, int64_t left) : low(0), high(0) {
    if (left <= 0) return;
    const uint32_t mask = left >= kGroup ? kAllLanes : (1u << left) - 1;
    low = tags[0] & mask;
    high = tags[1] & mask;
  }
  __device__ uint64_t Sizes() const {
    return Counts(__popc(low & ~high), __popc(high & ~low), __popc(low & high));
  }
};

// A warp counts the numbers of one worker's chunk. The workers' blocks follow each other.
__global__ void __launch_bounds__(kThreads)
    CountTags(Table<DecodedItem> table, int64_t units, ClassRows rows, uint32_t* arrived,
              int64_t (*starts)[kClasses]) {
  const int64_t worker = blockIdx.x / units, unit = blockIdx.x % units;
  const int32_t tensor = table.Find(unit, &DecodedItem::first_unit);
  const DecodedItem own = table.items[tensor];
  const uint32_t* const tags = rows.tags + worker * rows.tags_size + own.tags;
  starts += worker * table.pieces + own.first;
  const int64_t begin = (unit - own.first_unit) * kCounted;
  const int64_t end = begin + kCounted < own.chunks ? begin + kCounted : own.chunks;
  for (int64_t chunk = begin + WarpOf(); chunk < end; chunk += kThreads / kWarp) {
    uint64_t counts = 0;
#pragma unroll
    for (int i = 0; i < kChunk / kGroup / kWarp; ++i) {
      const int64_t group = chunk * (kChunk / kGroup) + i * kWarp + Lane();
      counts += Tags(tags + 2 * group, own.n - group * kGroup).Sizes();
    }
    counts = SumWarp(counts);
    if (Lane() < kClasses) starts[chunk][Lane()] = CountOf(counts, Lane());
  }
  if (!ArrivesAsLast(arrived + worker * table.count + tensor, own.Units())) return;
  int64_t totals[kClasses];
  SumRowsBefore(starts, own.chunks, totals);
}

// The number of an element of class `which`, 0 where its rank is beyond those that there are.
__device__ float NumberOf(const uint32_t* numbers, const ClassRooms& own, int which, int64_t rank) {
  const float unit = ClassEdges::Power(static_cast<int32_t>(own.unit));
  if (which == kByteClass) {
    if (rank >= own.bytes) return 0.0f;
    const int32_t byte = reinterpret_cast<const uint8_t*>(numbers + own.first_byte)[rank];
    const int32_t level = byte & 0x7f;
    return static_cast<float>(byte & 0x80 ? -level : level) * unit;
  }
  if (which == kHalfClass) {
    if (rank >= own.halves) return 0.0f;
    const int32_t half = reinterpret_cast<const uint16_t*>(numbers + own.wholes)[rank];
    const int32_t level = half & 0x7fff;
    return static_cast<float>(half & 0x8000 ? -level : level) * unit;
  }
  return rank < own.wholes ? __uint_as_float(numbers[rank]) : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    SumChunks(Table<DecodedItem> table, ClassRows rows, float factor,
              const int64_t (*starts)[kClasses], bool* finite) {
  __shared__ uint64_t in_warps[2][kThreads / kWarp];  // of one worker and of the next
  const auto [own, begin, n] = table.Piece();
  float sums[kEach] = {};
  for (int64_t w = 0; w < rows.workers; ++w) {
    const uint32_t* const words = rows.tags + w * rows.tags_size + own.tags;
    uint32_t low[kEach], high[kEach];
    uint64_t counts = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = begin + PlaceOf(j) - Lane();
      const Tags tags(words + at / kGroup * 2, own.n - at);
      low[j] = tags.low;
      high[j] = tags.high;
      counts += tags.Sizes();
    }
    if (Lane() == 0) in_warps[w % 2][WarpOf()] = counts;
    __syncthreads();
    uint64_t before = 0;
    for (int v = 0; v < WarpOf(); ++v) before += in_warps[w % 2][v];
    int64_t first[kClasses];
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      first[c] = starts[w * table.pieces + blockIdx.x][c] + CountOf(before, c);
    }
    const ClassRooms all(rows.counts + w * rows.counts_size + own.counts, own.words);
    const uint32_t* const numbers = rows.numbers + w * rows.numbers_size + own.numbers;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t classes[kClasses] = {low[j] & ~high[j], high[j] & ~low[j], low[j] & high[j]};
      float number = 0.0f;
#pragma unroll
      for (int c = 0; c < kClasses; ++c) {
        if (classes[c] >> Lane() & 1) {
          number = NumberOf(numbers, all, c, first[c] + __popc(classes[c] & LanesBefore()));
        }
        first[c] += __popc(classes[c]);
      }
      sums[j] = PlainFlush(AddZ(sums[j], number));
    }
  }
  StoreTotals(sums, factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_decode_classes(const DecodeOutput* targets, int64_t count,
                                           const Room* rooms, const ClassParts* parts,
                                           int64_t workers, float factor, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t chunks = 0, units = 0;
  for (int64_t i = 0; i < count; ++i) chunks += CeilDiv(targets[i].n, kChunk);
  DecodedItem* const items = launch.Take<DecodedItem>(count);
  uint32_t* const arrived = launch.Take<uint32_t>(workers * count);
  auto* const starts = launch.Take<int64_t[kClasses]>(workers * chunks);
  if (launch.OnlyMeasures()) return 0;
  ClassLengths at;
  launch.Zero(arrived, workers * count);
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const int64_t n = targets[i].n, own_chunks = CeilDiv(n, kChunk);
        const DecodedItem item{targets[i].total, n,       own_chunks, first,    units,
                               rooms[i].words,   at.tags, at.numbers, at.counts};
        at = at + ClassLengths(n, rooms[i]);
        units += CeilDiv(own_chunks, kCounted);
        return item;
      },
      finite);
  const ClassRows rows{parts->tags, parts->numbers, parts->counts, at.tags,
                       at.numbers,  at.counts,      workers};
  launch.Run(CountTags, workers * units, kThreads, table, units, rows, arrived, starts);
  launch.Run(SumChunks, chunks, kThreads, table, rows, factor,
             static_cast<const int64_t (*)[kClasses]>(starts), finite);
  return launch.error();
}
