// The scales of blocks of elements on the device: the measures of scales.h, joined in its order.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"
#include "kernels/base/device/launch.h"
#include "kernels/quantize/scales.h"

namespace grace {

// What a measure is for each norm, of no element, of one, and of two parts together.
template <Norm kNorm>
struct Measured;

template <>
struct Measured<Norm::kMax> {
  using Value = uint32_t;
  __device__ static Value None() { return 0; }
  __device__ static Value Of(float x) { return __float_as_uint(x) & kMagnitude; }
  __device__ static Value Join(Value a, Value b) { return a < b ? b : a; }
  __device__ static void Put(Value largest, float* scale) {
    *scale = __uint_as_float(largest < __float_as_uint(kSmallestScale) ? 0 : largest);
  }
};

template <>
struct Measured<Norm::kL2> {
  using Value = double;
  __device__ static Value None() { return 0.0; }
  __device__ static Value Of(float x) {
    const double wide = PlainFlush(x);
    return wide * wide;
  }
  __device__ static Value Join(Value a, Value b) { return a + b; }
  __device__ static void Put(Value sum, float* scale) {
    const double root = sqrt(sum);
    *scale = root < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(root);
  }
};

// The highest above the lowest, in 64 bits.
template <>
struct Measured<Norm::kMinMax> {
  using Value = uint64_t;
  __device__ static Value None() { return Both(INT32_MAX, INT32_MIN); }
  __device__ static Value Of(float x) {
    const int32_t bits = __float_as_int(x);
    const int32_t place = bits < 0 ? bits ^ static_cast<int32_t>(kMagnitude) : bits;
    return Both(place, place);
  }
  __device__ static Value Join(Value a, Value b) {
    return Both(Low(a) < Low(b) ? Low(a) : Low(b), High(a) < High(b) ? High(b) : High(a));
  }
  __device__ static void Put(Value measure, float* scale) {
    const float low = FloatAt(Low(measure)), high = FloatAt(High(measure));
    const float half = PlainFlush(0.5f * high) - PlainFlush(0.5f * low);
    scale[0] = half < kSmallestScale ? 0.0f : half;
    scale[1] = low;
  }

 private:
  __device__ static Value Both(int32_t low, int32_t high) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  }
  __device__ static int32_t Low(Value both) { return static_cast<int32_t>(both); }
  __device__ static int32_t High(Value both) { return static_cast<int32_t>(both >> 32); }
  __device__ static float FloatAt(int32_t place) {
    const auto bits = static_cast<uint32_t>(place);
    return PlainFlush(__uint_as_float(place < 0 ? bits ^ kMagnitude : bits));
  }
};

template <Norm kNorm>
using MeasuredValue = typename Measured<kNorm>::Value;

// Eight joined over adjacent pairs, then pairs of pairs.
template <Norm kNorm>
__device__ MeasuredValue<kNorm> JoinEight(const MeasuredValue<kNorm>* v) {
  using M = Measured<kNorm>;
  return M::Join(M::Join(M::Join(v[0], v[1]), M::Join(v[2], v[3])),
                 M::Join(M::Join(v[4], v[5]), M::Join(v[6], v[7])));
}

// Measures each block of the first n elements of a piece, which begins where a block does, and
// calls put(block, value) in one thread for each. acc is as LoadPiece has it; block <= kChunk.
// Every thread must call it. A lane joins eight neighbours, a team of lanes a block, or a warp 256
// elements of it.
template <Norm kNorm, class Put>
__device__ void MeasureBlocks(const float* acc, int32_t n, int32_t block, const Put& put) {
  using M = Measured<kNorm>;
  using Value = MeasuredValue<kNorm>;
  constexpr int kOwn = 8, kSegment = kOwn * kWarp, kWarps = kThreads / kWarp;
  // A gap after each eight keeps the lanes in different banks.
  __shared__ float x[kChunk + kChunk / kOwn];
  __shared__ Value parts[2 * kChunk / kSegment];
#pragma unroll
  for (int j = 0; j < kEach; ++j) x[PlaceOf(j) + PlaceOf(j) / kOwn] = acc[j];
  __syncthreads();
  const int32_t blocks = (n + block - 1) / block, segments = (block + kSegment - 1) / kSegment;
  const int32_t units = blocks * segments;
  int32_t team = 1;
  while (team < kWarp && team * kOwn < block) team *= 2;
  const int32_t teams = kWarp / team;
  for (int32_t from = WarpOf() * teams; from < units; from += kWarps * teams) {
    const int32_t unit = from + Lane() / team, b = unit / segments;
    const int32_t begin = b * block + unit % segments * kSegment + Lane() % team * kOwn;
    const int32_t end = (b + 1) * block < n ? (b + 1) * block : n;
    Value v[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int32_t at = begin + k;
      v[k] = at < end ? M::Of(x[at + at / kOwn]) : M::None();
    }
    Value joined = JoinEight<kNorm>(v);
    for (int32_t lanes = 1; lanes < team; lanes *= 2) {
      joined = M::Join(joined, __shfl_xor_sync(kAllLanes, joined, lanes));
    }
    if (Lane() % team || unit >= units) continue;
    if (segments == 1) {
      put(b, joined);
    } else {
      parts[unit] = joined;
    }
  }
  if (segments == 1) return;
  __syncthreads();
  const auto b = static_cast<int32_t>(threadIdx.x);
  if (b >= blocks) return;
  Value v[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) v[k] = k < segments ? parts[b * segments + k] : M::None();
  put(b, JoinEight<kNorm>(v));
}

// The parts of something joined over adjacent pairs, then pairs of pairs. Spoils them. Every thread
// of the block must call it and gets the result.
template <Norm kNorm>
__device__ MeasuredValue<kNorm> JoinParts(MeasuredValue<kNorm>* parts, int64_t count) {
  using M = Measured<kNorm>;
  using Value = MeasuredValue<kNorm>;
  static_assert(kThreads / kWarp == 8);
  __shared__ Value sums[kThreads / kWarp];
  do {
    for (int64_t from = 0; from < count; from += kThreads) {
      const int64_t at = from + threadIdx.x;
      Value v = at < count ? parts[at] : M::None();
#pragma unroll
      for (int lanes = 1; lanes < kWarp; lanes *= 2) {
        v = M::Join(v, __shfl_xor_sync(kAllLanes, v, lanes));
      }
      if (Lane() == 0) sums[WarpOf()] = v;
      __syncthreads();
      if (threadIdx.x == 0) parts[from / kThreads] = JoinEight<kNorm>(sums);
      __syncthreads();
    }
    count = (count + kThreads - 1) / kThreads;
  } while (count > 1);
  return count ? parts[0] : M::None();
}

// How the blocks of a tensor are measured that do not fit into a piece: in parts, counted from each
// block's first element. An Item that is measured has one as `measured`, and its member
// `first_part` and `first_block`, numbers through the list.
struct MeasuredBlocks {
  float* scales;
  int64_t block;
  // Set by CountParts.
  int64_t parts, blocks, parts_of_block;
};

inline MeasuredBlocks CountParts(float* scales, int64_t n, int64_t block) {
  const int64_t blocks = CeilDiv(n, block), of_block = CeilDiv(block, kChunk);
  const int64_t whole = blocks > 0 ? blocks - 1 : 0;
  return {scales, block, whole * of_block + CeilDiv(n - whole * block, kChunk), blocks, of_block};
}

// A block of threads measures a part.
template <Norm kNorm, class Item>
__global__ void __launch_bounds__(kThreads)
    MeasurePieces(Table<Item> table, MeasuredValue<kNorm>* parts) {
  const Item own = table.items[table.Find(blockIdx.x, &Item::first_part)];
  const MeasuredBlocks& measured = own.measured;
  const auto piece = static_cast<uint32_t>(blockIdx.x - own.first_part);
  const uint32_t b = piece / static_cast<uint32_t>(measured.parts_of_block);
  const int64_t within = (piece - b * measured.parts_of_block) * kChunk;
  const int64_t begin = b * measured.block + within;
  int64_t n = own.n - begin;
  if (n > measured.block - within) n = measured.block - within;
  if (n > kChunk) n = kChunk;
  float acc[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  MeasureBlocks<kNorm>(acc, static_cast<int32_t>(n), static_cast<int32_t>(kChunk),
                       [=](int32_t, MeasuredValue<kNorm> value) { parts[blockIdx.x] = value; });
}

// A block of threads joins the parts of a block.
template <Norm kNorm, class Item>
__global__ void __launch_bounds__(kThreads)
    JoinPieces(Table<Item> table, MeasuredValue<kNorm>* parts) {
  const Item own = table.items[table.Find(blockIdx.x, &Item::first_block)];
  const MeasuredBlocks& measured = own.measured;
  const int64_t b = blockIdx.x - own.first_block, first = b * measured.parts_of_block;
  const int64_t rest = measured.parts - first;
  const int64_t count = rest < measured.parts_of_block ? rest : measured.parts_of_block;
  const auto whole = JoinParts<kNorm>(parts + own.first_part + first, count);
  constexpr int kFloats = kNorm == Norm::kMinMax ? 2 : 1;
  if (threadIdx.x == 0) Measured<kNorm>::Put(whole, measured.scales + kFloats * b);
}

}  // namespace grace
