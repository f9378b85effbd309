// How: a first pass counts the exponents of each chunk, from which come the tensor's edges and the
// beginning of each chunk's numbers; a second one writes these and the residuals.
#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/last_block.h"
#include "kernels/base/device/launch.h"
#include "kernels/codes/device/size_classes.h"

namespace grace {
namespace {

// A tensor without elements has one piece as well, which writes its counts.
int64_t ChunksOf(int64_t n) { return n > 0 ? CeilDiv(n, kChunk) : 1; }

struct EncodedItem {
  DeviceInput source;
  float* residual_out;
  uint32_t *tags, *numbers;
  int32_t* counts;
  int64_t n, chunks;
  int64_t first;       // of its chunks
  int64_t first_unit;  // of what blocks count of them
  Room room;

  __device__ int64_t Units() const { return (chunks + kCounted - 1) / kCounted; }
};

// What the kernels find out about a tensor. All of it begins at 0.
struct Found {
  unsigned long long exponents[kExponents];
  uint32_t arrived[2];
  ClassWindow window;
  int64_t least;
};

struct Rooms {
  Found* found;
  uint16_t (*exponents)[kExponents];  // of each chunk
  int64_t (*starts)[kCounts];         // of each chunk
};

// The edges of a tensor, and what there is of each class.
__device__ void Settle(const EncodedItem& own, int32_t bound, uint64_t step, Found* found) {
  // How many elements have at least an exponent.
  __shared__ int64_t above[kExponents + 1];
  const int thread = threadIdx.x;
  int64_t total;
  const auto count = static_cast<int64_t>(__ldcg(&found->exponents[kExponents - 1 - thread]));
  above[kExponents - 1 - thread] = SumBefore(count, &total) + count;
  if (thread == 0) above[kExponents] = 0;
  __syncthreads();
  const LeastExponents all(above, bound, own.room);
  const int32_t least = thread + 1;
  ClassChoice choice;
  if (least >= all.first && least <= all.last) {
    choice = ChooseUnit(above, least, all.first, own.room);
  }
  const double error = JoinBlock(choice.error, Minimum());
  const int32_t best = JoinBlock(choice.error == error ? least : kExponents + 1, Minimum());
  if (least != best) return;
  const ClassEdges edges(least, choice.unit);
  const int64_t wanted = least > 1 ? above[least - 1] - above[least] : 0;
  const auto start = wanted > 0 ? static_cast<int64_t>(step * choice.more % wanted) : 0;
  found->window = {wanted, choice.more, start};
  found->least = least;
  own.counts[0] = edges.unit;
  own.counts[1] = static_cast<int32_t>(above[least] - above[edges.half] + choice.more);
  own.counts[2] = static_cast<int32_t>(above[edges.half] - above[edges.whole]);
  own.counts[3] = static_cast<int32_t>(above[edges.whole]);
}

// How many of the elements of an exponent are in each class.
__device__ uint64_t CountsAt(const ClassEdges& edges, int32_t e, uint32_t count) {
  const bool whole = e >= edges.whole, half = e >= edges.half && !whole;
  const bool byte = e >= edges.byte && !half && !whole, below = e > 0 && e == edges.byte - 1;
  return Counts(byte ? count : 0, half ? count : 0, whole ? count : 0, below ? count : 0);
}

__global__ void __launch_bounds__(kThreads)
    CountExponents(Table<EncodedItem> table, float multiplier, int32_t bound, uint64_t step,
                   Rooms rooms) {
  // Several counters for each, as most elements have one of a few exponents.
  constexpr int kCopies = 8;
  __shared__ uint32_t counters[kExponents][kCopies];
  static_assert(kExponents == kThreads);
  const int32_t tensor = table.Find(blockIdx.x);
  const EncodedItem own = table.items[tensor];
  const int64_t begin = (blockIdx.x - own.first) * kChunk, left = own.n - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
#pragma unroll
  for (int c = 0; c < kCopies; ++c) counters[threadIdx.x][c] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (PlaceOf(j) >= n) continue;
    atomicAdd(&counters[__float_as_uint(acc[j]) >> 23 & 0xff][Lane() % kCopies], 1u);
  }
  __syncthreads();
  uint32_t count = 0;
#pragma unroll
  for (int c = 0; c < kCopies; ++c) count += counters[threadIdx.x][c];
  rooms.exponents[blockIdx.x][threadIdx.x] = static_cast<uint16_t>(count);
  Found* const found = rooms.found + tensor;
  if (count) atomicAdd(&found->exponents[threadIdx.x], static_cast<unsigned long long>(count));
  if (ArrivesAsLast(&found->arrived[0], own.chunks)) Settle(own, bound, step, found);
}

// A warp counts the classes of a chunk.
__global__ void __launch_bounds__(kThreads) CountClasses(Table<EncodedItem> table, Rooms rooms) {
  const int32_t tensor = table.Find(blockIdx.x, &EncodedItem::first_unit);
  const EncodedItem own = table.items[tensor];
  const ClassEdges edges(static_cast<int32_t>(rooms.found[tensor].least), own.counts[0]);
  const int64_t begin = (blockIdx.x - own.first_unit) * kCounted;
  const int64_t end = begin + kCounted < own.chunks ? begin + kCounted : own.chunks;
  for (int64_t chunk = begin + WarpOf(); chunk < end; chunk += kThreads / kWarp) {
    uint64_t counts = 0;
    for (int e = Lane(); e < kExponents; e += kWarp) {
      counts += CountsAt(edges, e, rooms.exponents[own.first + chunk][e]);
    }
    counts = SumWarp(counts);
    if (Lane() < kCounts) rooms.starts[own.first + chunk][Lane()] = CountOf(counts, Lane());
  }
  if (!ArrivesAsLast(&rooms.found[tensor].arrived[1], own.Units())) return;
  int64_t totals[kCounts];
  SumRowsBefore(rooms.starts + own.first, own.chunks, totals);
}

// A block's share of making numbers [from, until) zero.
template <class T>
__device__ void FillZeros(T* numbers, int64_t from, int64_t until, int64_t share, int64_t shares) {
  from += share * kThreads + threadIdx.x;
  for (int64_t i = from; i < until; i += shares * kThreads) numbers[i] = 0;
}

// How many blocks of EmitChunks a multiprocessor holds at a time, which bounds the registers of a
// thread: to 80, too few for sm_120 and sm_121, where ptxas of CUDA 13.0 spills some, or to 128.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kEmitters = 2;
#else
constexpr int kEmitters = 3;
#endif

__global__ void __launch_bounds__(kThreads, kEmitters)
    EmitChunks(Table<EncodedItem> table, float multiplier, Rooms rooms, bool* finite) {
  __shared__ uint64_t in_warps[kThreads / kWarp];
  const int32_t tensor = table.Find(blockIdx.x);
  const EncodedItem own = table.items[tensor];
  const int64_t chunk = blockIdx.x - own.first, begin = chunk * kChunk, left = own.n - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  const ClassEdges edges(static_cast<int32_t>(rooms.found[tensor].least), own.counts[0]);
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  uint64_t counts = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const auto e = static_cast<int32_t>((__float_as_uint(acc[j]) & kMagnitude) >> 23);
    counts += CountsAt(edges, e, 1);
  }
  counts = SumWarp(counts);
  if (Lane() == 0) in_warps[WarpOf()] = counts;
  __syncthreads();
  uint64_t before = 0;
  for (int w = 0; w < WarpOf(); ++w) before += in_warps[w];
  const int64_t* const starts = rooms.starts[blockIdx.x];
  int64_t bytes = starts[kByteClass] + CountOf(before, kByteClass);
  int64_t halves = starts[kHalfClass] + CountOf(before, kHalfClass);
  int64_t wholes = starts[kWholeClass] + CountOf(before, kWholeClass);
  int64_t belows = starts[kBelow] + CountOf(before, kBelow);
  const ClassWindow window = rooms.found[tensor].window;
  const ClassRooms all(own.counts, own.room.words);
  auto* const own_bytes = reinterpret_cast<uint8_t*>(own.numbers + all.first_byte);
  auto* const own_halves = reinterpret_cast<uint16_t*>(own.numbers + all.wholes);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    const uint32_t bits = __float_as_uint(acc[j]), sign = bits & kSignBit;
    const float size = __uint_as_float(bits & kMagnitude);
    const auto e = static_cast<int32_t>((bits & kMagnitude) >> 23);
    const bool whole = e >= edges.whole, large = e >= edges.half, half = large && !whole;
    const uint32_t sure = __ballot_sync(kAllLanes, e >= edges.byte && !large);
    const uint32_t wanted = __ballot_sync(kAllLanes, e > 0 && e == edges.byte - 1);
    const uint32_t of_halves = __ballot_sync(kAllLanes, half);
    const uint32_t of_wholes = __ballot_sync(kAllLanes, whole);
    const int64_t rank = belows + __popc(wanted & LanesBefore());
    const bool byte = (sure >> Lane() & 1) || ((wanted >> Lane() & 1) && window.Has(rank));
    const uint32_t of_bytes = __ballot_sync(kAllLanes, byte);
    float sent = 0.0f;
    // The products are exact, their factors powers of two; NaN becomes the largest number.
    if (byte) {
      const float scaled = size * edges.UnitsIn();
      const auto level = static_cast<int32_t>(scaled < 127.0f ? scaled : 127.0f);
      sent = static_cast<float>(level) * edges.Unit();
      own_bytes[bytes + __popc(sure & LanesBefore()) + window.Below(rank)] =
          static_cast<uint8_t>(level | sign >> 24);
    } else if (half) {
      const float scaled = size * edges.UnitsIn();
      const auto level = static_cast<int32_t>(scaled < 32767.0f ? scaled : 32767.0f);
      sent = static_cast<float>(level) * edges.Unit();
      own_halves[halves + __popc(of_halves & LanesBefore())] =
          static_cast<uint16_t>(level | sign >> 16);
    } else if (whole) {
      sent = size;
      own.numbers[wholes + __popc(of_wholes & LanesBefore())] = bits;
    }
    bytes += __popc(sure);
    belows += __popc(wanted);
    halves += __popc(of_halves);
    wholes += __popc(of_wholes);
    const int64_t group = at / kGroup;
    if (Lane() < 2 && group * kGroup < own.n) {
      own.tags[2 * group + Lane()] = (Lane() == 0 ? of_bytes : of_halves) | of_wholes;
    }
    if (at >= own.n || !own.residual_out) continue;
    const uint32_t signed_bits = __float_as_uint(sent) | (byte || large ? sign : 0);
    own.residual_out[at] = SubZ(acc[j], __uint_as_float(signed_bits));
  }
  FillZeros(own_bytes, all.bytes, 4 * (own.room.words - all.first_byte), chunk, own.chunks);
  FillZeros(own_halves, all.halves, 2 * (all.first_byte - all.wholes), chunk, own.chunks);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_encode_classes(const EncodeInput* sources, int64_t count,
                                           float multiplier, int32_t bound, const Room* rooms,
                                           uint64_t step, const ClassParts* parts, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t chunks = 0, units = 0;
  for (int64_t i = 0; i < count; ++i) chunks += ChunksOf(sources[i].n);
  EncodedItem* const items = launch.Take<EncodedItem>(count);
  Found* const found = launch.Take<Found>(count);
  auto* const exponents = launch.Take<uint16_t[kExponents]>(chunks);
  const Rooms found_rooms{found, exponents, launch.Take<int64_t[kCounts]>(chunks)};
  if (launch.OnlyMeasures()) return 0;
  ClassLengths at;
  launch.Zero(reinterpret_cast<uint32_t*>(found), count * (sizeof(Found) / 4));
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        const EncodedItem item{{own.x, own.residual},
                               own.residual_out,
                               parts->tags + at.tags,
                               parts->numbers + at.numbers,
                               parts->counts + at.counts,
                               own.n,
                               ChunksOf(own.n),
                               first,
                               units,
                               rooms[i]};
        at = at + ClassLengths(own.n, rooms[i]);
        units += CeilDiv(ChunksOf(own.n), kCounted);
        return item;
      },
      [=](int64_t i) { return ChunksOf(sources[i].n); }, finite);
  launch.Run(CountExponents, chunks, kThreads, table, multiplier, bound, step, found_rooms);
  launch.Run(CountClasses, units, kThreads, table, found_rooms);
  launch.Run(EmitChunks, chunks, kThreads, table, multiplier, found_rooms, finite);
  return launch.error();
}
