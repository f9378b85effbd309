// How: a first pass counts the exponents of each chunk, from which come the tensor's shift and the
// beginning of each chunk's numbers; a second one writes these and the residuals.
#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/last_block.h"
#include "kernels/base/device/launch.h"
#include "kernels/codes/device/size_classes.h"

namespace grace {
namespace {

constexpr int kExponents = 256;

// A tensor without elements has one piece as well, which writes its counts.
int64_t ChunksOf(int64_t n) { return n > 0 ? CeilDiv(n, kChunk) : 1; }

struct EncodedItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* tags;
  uint8_t* bytes;
  uint16_t* halves;
  float* wholes;
  int32_t* counts;
  int64_t n, chunks;
  int64_t first;                                 // of its chunks
  int64_t first_unit;                            // of what blocks count of them
  int64_t bytes_room, halves_room, wholes_room;  // of numbers
  int64_t bytes_size, halves_size, wholes_size;  // of the parts

  __device__ int64_t Units() const { return (chunks + kCounted - 1) / kCounted; }
};

// What the kernels find out about a tensor. All of it begins at 0.
struct Found {
  unsigned long long exponents[kExponents];
  uint32_t arrived[2];
  ClassWindow window;
};

struct Rooms {
  Found* found;
  uint16_t (*exponents)[kExponents];  // of each chunk
  int64_t (*starts)[kClasses];        // of each chunk
};

// The least shift with which a tensor's halves and wholes fit, and what there is of each class.
__device__ void Settle(const EncodedItem& own, ErrorBound bound, uint64_t step, Found* found) {
  // How many elements have at least an exponent; there are none from kExponents on.
  __shared__ int64_t above[2 * kExponents];
  const int thread = threadIdx.x;
  int64_t total;
  const auto count = static_cast<int64_t>(__ldcg(&found->exponents[kExponents - 1 - thread]));
  above[kExponents - 1 - thread] = SumBefore(count, &total) + count;
  above[kExponents + thread] = 0;
  __syncthreads();
  const auto fits = [&](int32_t shift) {
    const ClassEdges edges(bound, shift);
    return above[edges.half] - above[edges.whole] <= own.halves_room &&
           above[edges.whole] <= own.wholes_room;
  };
  const int32_t most = bound.LargestShift();
  const int32_t own_shift = thread < most && fits(thread) ? thread : most;
  const int32_t shift = JoinBlock(own_shift, Minimum());
  if (thread != 0) return;
  const ClassEdges edges(bound, shift);
  const int64_t wanted = above[edges.byte] - above[edges.half];
  const int64_t room = wanted < own.bytes_room ? wanted : own.bytes_room;
  found->window = {wanted, room, wanted > room ? static_cast<int64_t>(step * room % wanted) : 0};
  own.counts[0] = shift;
  own.counts[1] = static_cast<int32_t>(wanted);
  own.counts[2] = static_cast<int32_t>(above[edges.half] - above[edges.whole]);
  own.counts[3] = static_cast<int32_t>(above[edges.whole]);
}

__global__ void __launch_bounds__(kThreads)
    CountExponents(Table<EncodedItem> table, float multiplier, ErrorBound bound, uint64_t step,
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
__global__ void __launch_bounds__(kThreads)
    CountClasses(Table<EncodedItem> table, ErrorBound bound, Rooms rooms) {
  const int32_t tensor = table.Find(blockIdx.x, &EncodedItem::first_unit);
  const EncodedItem own = table.items[tensor];
  const ClassEdges edges(bound, own.counts[0]);
  const int64_t begin = (blockIdx.x - own.first_unit) * kCounted;
  const int64_t end = begin + kCounted < own.chunks ? begin + kCounted : own.chunks;
  for (int64_t chunk = begin + WarpOf(); chunk < end; chunk += kThreads / kWarp) {
    uint64_t counts = 0;
    for (int e = Lane(); e < kExponents; e += kWarp) {
      const uint32_t count = rooms.exponents[own.first + chunk][e];
      const bool whole = e >= edges.whole, half = e >= edges.half && !whole;
      const bool byte = e >= edges.byte && !half && !whole;
      counts += Counts(byte ? count : 0, half ? count : 0, whole ? count : 0);
    }
    counts = SumWarp(counts);
    if (Lane() < kClasses) rooms.starts[own.first + chunk][Lane()] = CountOf(counts, Lane());
  }
  if (!ArrivesAsLast(&rooms.found[tensor].arrived[1], own.Units())) return;
  int64_t totals[kClasses];
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
    EmitChunks(Table<EncodedItem> table, float multiplier, ErrorBound bound, Rooms rooms,
               bool* finite) {
  __shared__ uint64_t in_warps[kThreads / kWarp];
  const int32_t tensor = table.Find(blockIdx.x);
  const EncodedItem own = table.items[tensor];
  const int64_t chunk = blockIdx.x - own.first, begin = chunk * kChunk, left = own.n - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  const ClassEdges edges(bound, own.counts[0]);
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  uint64_t counts = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const auto e = static_cast<int32_t>((__float_as_uint(acc[j]) & kMagnitude) >> 23);
    const bool whole = e >= edges.whole, half = e >= edges.half && !whole;
    counts += Counts(e >= edges.byte && !half && !whole, half, whole);
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
  const ClassWindow window = rooms.found[tensor].window;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = begin + PlaceOf(j);
    const uint32_t bits = __float_as_uint(acc[j]), sign = bits & kSignBit;
    const float size = __uint_as_float(bits & kMagnitude);
    const auto e = static_cast<int32_t>((bits & kMagnitude) >> 23);
    const bool whole = e >= edges.whole, large = e >= edges.half, half = large && !whole;
    const uint32_t wanted = __ballot_sync(kAllLanes, e >= edges.byte && !large);
    const uint32_t of_halves = __ballot_sync(kAllLanes, half);
    const uint32_t of_wholes = __ballot_sync(kAllLanes, whole);
    const int64_t rank = bytes + __popc(wanted & LanesBefore());
    const bool byte = (wanted >> Lane() & 1) && window.Has(rank);
    const uint32_t of_bytes = __ballot_sync(kAllLanes, byte);
    float sent = 0.0f;
    // The products are exact, their factors powers of two; NaN becomes the largest number.
    if (byte) {
      const float scaled = size * edges.BytesIn();
      const auto level = static_cast<int32_t>(scaled < 127.0f ? scaled : 127.0f);
      sent = static_cast<float>(level) * edges.ByteUnit();
      own.bytes[window.Below(rank)] = static_cast<uint8_t>(level | sign >> 24);
    } else if (half) {
      const float scaled = size * edges.HalvesIn();
      const auto level = static_cast<int32_t>(scaled < 32767.0f ? scaled : 32767.0f);
      sent = static_cast<float>(level) * edges.HalfUnit();
      own.halves[halves + __popc(of_halves & LanesBefore())] =
          static_cast<uint16_t>(level | sign >> 16);
    } else if (whole) {
      sent = size;
      own.wholes[wholes + __popc(of_wholes & LanesBefore())] = acc[j];
    }
    bytes += __popc(wanted);
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
  FillZeros(own.bytes, window.room, own.bytes_size, chunk, own.chunks);
  FillZeros(own.halves, own.counts[2], own.halves_size, chunk, own.chunks);
  FillZeros(own.wholes, own.counts[3], own.wholes_size, chunk, own.chunks);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_encode_classes(const EncodeInput* sources, int64_t count,
                                           float multiplier, ErrorBound bound, const Room* rooms,
                                           uint64_t step, const ClassParts* parts, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t chunks = 0, units = 0;
  for (int64_t i = 0; i < count; ++i) chunks += ChunksOf(sources[i].n);
  EncodedItem* const items = launch.Take<EncodedItem>(count);
  Found* const found = launch.Take<Found>(count);
  auto* const exponents = launch.Take<uint16_t[kExponents]>(chunks);
  const Rooms found_rooms{found, exponents, launch.Take<int64_t[kClasses]>(chunks)};
  if (launch.OnlyMeasures()) return 0;
  ClassLengths at;
  launch.Zero(reinterpret_cast<uint32_t*>(found), count * (sizeof(Found) / 4));
  const auto table = launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = sources[i];
        const ClassLengths lengths(own.n, rooms[i]);
        const EncodedItem item{{own.x, own.residual},
                               own.residual_out,
                               parts->tags + at.tags,
                               reinterpret_cast<uint8_t*>(parts->bytes + at.bytes),
                               reinterpret_cast<uint16_t*>(parts->halves + at.halves),
                               parts->wholes + at.wholes,
                               parts->counts + at.counts,
                               own.n,
                               ChunksOf(own.n),
                               first,
                               units,
                               rooms[i].bytes,
                               rooms[i].halves,
                               rooms[i].wholes,
                               4 * lengths.bytes,
                               2 * lengths.halves,
                               lengths.wholes};
        at = at + lengths;
        units += CeilDiv(ChunksOf(own.n), kCounted);
        return item;
      },
      [=](int64_t i) { return ChunksOf(sources[i].n); }, finite);
  launch.Run(CountExponents, chunks, kThreads, table, multiplier, bound, step, found_rooms);
  launch.Run(CountClasses, units, kThreads, table, bound, found_rooms);
  launch.Run(EmitChunks, chunks, kThreads, table, multiplier, bound, found_rooms, finite);
  return launch.error();
}
