#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/planes.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/rotated_codes.h"

namespace grace {
namespace {

constexpr int kWarps = kThreads / kWarp;
// The most blocks of a piece.
constexpr int kMostBlocks = kChunk / kGroup;

// A tensor that is encoded.
struct RotatedItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* words;
  float* scales;
  int64_t n, first;
  PhiloxKey key;
  float multiplier;
  int32_t unused;
};

// A piece is n elements, cut into blocks. Each thread holds some of them in registers: those at the
// places PlaceOf(j).
// `room` is an array of kChunk floats in shared memory. Through it a thread reads what threads of
// other warps hold.
struct RotatedPiece {
  int32_t block, log_block, length, count;
  float* room;
  const uint32_t* signs;

  __device__ RotatedPiece(const RotatedCode& code, int64_t n, float* room, const uint32_t* signs)
      : block(static_cast<int32_t>(code.block)), room(room), signs(signs) {
    log_block = __popc(block - 1);
    const int64_t rest = n & (code.block - 1);
    length = static_cast<int32_t>(n - rest + (rest ? code.SizeAt(rest) : 0));
    count = (static_cast<int32_t>(n) + block - 1) >> log_block;
  }
  // Whether element j of this thread belongs to a block, and the number of that block. All 32
  // elements of a group belong to the same block.
  __device__ bool Has(int j) const { return PlaceOf(j) < length; }
  __device__ int32_t BlockOf(int j) const { return PlaceOf(j) >> log_block; }
  __device__ int32_t SizeOf(int32_t b) const {
    const int32_t left = length - (b << log_block);
    return left < block ? left : block;
  }
  // Returns v times the random sign of element j, which is 1 or -1.
  __device__ float Flipped(float v, int j) const {
    const uint32_t sign = signs[(PlaceOf(j) & (block - 1)) / kWarp] >> Lane() << 31;
    return __uint_as_float(__float_as_uint(v) ^ sign);
  }
  // Transforms all blocks of elements. Every thread of the thread block must call it. The last
  // block may be smaller than the others. A pair whose upper element is not below `length` does not
  // exist in it, and is left out.
  __device__ void Transform(float* v) const {
    for (int32_t distance = block / 2; distance >= kEach * kWarp; distance /= 2) {
      Share(v);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int32_t place = PlaceOf(j);
        if ((place | distance) >= length) continue;
        const float other = room[place ^ distance];
        v[j] = place & distance ? SubZ(other, v[j]) : AddZ(v[j], other);
      }
    }
#pragma unroll
    for (int apart = kEach / 2; apart; apart /= 2) {
      if (apart * kWarp >= block) continue;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (j & apart || !Has(j + apart)) continue;
        const float a = v[j], b = v[j + apart];
        v[j] = AddZ(a, b);
        v[j + apart] = SubZ(a, b);
      }
    }
#pragma unroll
    for (int lanes = kWarp / 2; lanes; lanes /= 2) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const float other = __shfl_xor_sync(kAllLanes, v[j], lanes);
        v[j] = Lane() & lanes ? SubZ(other, v[j]) : AddZ(v[j], other);
      }
    }
  }
  // Adds up the terms of each block b of elements, and one thread calls put(b, sum). Every thread
  // of the thread block must call Sum. When it returns, all threads can read what put has written
  // to shared memory.
  template <class Put>
  __device__ void Sum(const float* terms, const Put& put) const {
    Share(terms);
    for (int32_t b = WarpOf(); b < count; b += kWarps) {
      const float* const own = room + (b << log_block);
      float sum = 0.0f;
#pragma unroll 8
      for (int32_t i = Lane(); i < SizeOf(b); i += kWarp) sum = AddZ(sum, own[i]);
#pragma unroll
      for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
        sum = AddZ(sum, __shfl_xor_sync(kAllLanes, sum, lanes));
      }
      if (Lane() == 0) put(b, sum);
    }
    __syncthreads();
  }

 private:
  // Copies the elements of each thread to shared memory, so that every thread can read them there.
  __device__ void Share(const float* v) const {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) room[PlaceOf(j)] = v[j];
    __syncthreads();
  }
};

// The words that say which signs of a block are flipped.
__device__ void DrawSigns(const PhiloxKey& key, int64_t block, uint32_t* signs) {
  const int32_t quad = threadIdx.x;
  if (4 * kWarp * quad >= block) return;
  const PhiloxWords drawn = PhiloxBlock(key, quad);
  for (int i = 0; i < 4; ++i) signs[4 * quad + i] = drawn.words[i];
}

__device__ float ScaleAsUsed(float scale) { return scale < kLeastRotatedScale ? 0.0f : scale; }

// The biased exponent of a block's factor. `largest` is the block's largest magnitude, as the bits
// of a float. Returns 0 where the block is sent as zeros or as NaN.
__device__ uint32_t PowerOf(uint32_t largest) {
  const bool usual = largest < kInfinity && largest >= __float_as_uint(kLeastRotated);
  return usual ? 2 * 127 + kRotatedExponent - (largest >> 23) : 0;
}

// Sets largest[b] to the largest magnitude of block b, as the bits of a float. Before, it must be
// 0. The caller needs a barrier before it reads the result.
__device__ void FindLargest(const RotatedPiece& piece, const float* acc, uint32_t* largest) {
  uint32_t most[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) most[j] = __float_as_uint(acc[j]) & kMagnitude;
#pragma unroll
  for (int apart = 1; apart < kEach; apart *= 2) {
    if (apart * kWarp >= piece.block) continue;
#pragma unroll
    for (int j = 0; j < kEach; j += 2 * apart) {
      most[j] = most[j] < most[j + apart] ? most[j + apart] : most[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j * kWarp & (piece.block - 1)) continue;  // most[j] is part of an earlier maximum
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const uint32_t other = __shfl_xor_sync(kAllLanes, most[j], lanes);
      most[j] = most[j] < other ? other : most[j];
    }
    if (Lane() == 0) atomicMax(&largest[piece.BlockOf(j)], most[j]);
  }
}

// A thread block encodes a piece.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(4, 2, 100))
    EncodeRotatedPieces(Table<RotatedItem> table, const __grid_constant__ RotatedCode code,
                        bool* finite) {
  __shared__ float room[kChunk], centroids[kMostCentroids];
  __shared__ float squares[kMostBlocks], units[kMostBlocks], shares[kMostBlocks];
  __shared__ float scales[kMostBlocks];
  __shared__ uint32_t signs[kMostRotated / kGroup + 4], largest[kMostBlocks];
  __shared__ int32_t limits[kMostCentroids];
  const auto [own, begin, n] = table.Piece();
  const RotatedPiece piece(code, n, room, signs);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kMostBlocks) largest[thread] = 0;
  if (thread < code.count) {
    centroids[thread] = code.centroids[thread];
    limits[thread] = code.limits[thread];
  }
  DrawSigns(own.key, code.block, signs);
  float acc[kEach], v[kEach], terms[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  __syncthreads();
  FindLargest(piece, acc, largest);
  __syncthreads();
  float powers[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    powers[j] = __uint_as_float(PowerOf(largest[piece.BlockOf(j)]) << 23);
  }
  MulEachZ<kEach>(acc, powers, v);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    v[j] = piece.Has(j) && powers[j] != 0.0f ? piece.Flipped(v[j], j) : 0.0f;
  }
  piece.Transform(v);
  MulEachZ<kEach>(v, v, terms);
  piece.Sum(terms, [&](int32_t b, float square) {
    const double mean = static_cast<double>(square) * (1.0 / piece.SizeOf(b));
    const auto norm = static_cast<float>(sqrt(mean));
    squares[b] = square;
    units[b] = static_cast<float>(code.resolution / static_cast<double>(norm));
  });
  const auto last = static_cast<float>(code.Last());
  float sizes[kEach], own_units[kEach], given[kEach], chosen[kEach];
  uint32_t codes[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    sizes[j] = fabsf(v[j]);
    own_units[j] = units[piece.BlockOf(j)];
  }
  MulEachZ<kEach>(sizes, own_units, given);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool sent = piece.Has(j) && powers[j] != 0.0f;
    const auto steps = static_cast<int32_t>(rintf(given[j] < last ? given[j] : last));
    // The code of an element counts the limits that are at most `steps`.
    int32_t number = 0;
    for (int32_t half = code.count / 2; half; half /= 2) {
      if (limits[number + half - 1] <= steps) number += half;
    }
    const bool negative = v[j] < 0.0f;
    chosen[j] = centroids[number];
    v[j] = negative ? -chosen[j] : chosen[j];
    codes[j] = sent ? number | static_cast<uint32_t>(negative) << (code.bits - 1) : 0;
  }
  MulEachZ<kEach>(chosen, sizes, terms);
  StorePlanes(codes, code.bits, piece.length, own.words + begin / kGroup * code.bits);
  const auto scale = [&](int32_t b, double over, double under) {
    const uint32_t power = PowerOf(largest[b]);
    const double size = piece.SizeOf(b);
    const double times = under * (static_cast<double>(__uint_as_float(power << 23)) * size);
    const float zeros = __uint_as_float(largest[b] < kInfinity ? 0 : 0x7fc00000);
    scales[b] = power ? static_cast<float>(over / times) : zeros;
    own.scales[(begin >> piece.log_block) + b] = scales[b];
  };
  if (code.least) {
    piece.Sum(terms, [&](int32_t b, float share) { shares[b] = share; });
    MulEachZ<kEach>(v, v, terms);
    piece.Sum(terms, [&](int32_t b, float square) { scale(b, shares[b], square); });
  } else {
    piece.Sum(terms, [&](int32_t b, float share) { scale(b, squares[b], share); });
  }
  if (!own.residual_out) return;
  float meant[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) meant[j] = ScaleAsUsed(scales[piece.BlockOf(j)]);
  MulEachZ<kEach>(v, meant, terms);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (piece.Has(j)) v[j] = powers[j] != 0.0f ? terms[j] : scales[piece.BlockOf(j)];
  }
  piece.Transform(v);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (PlaceOf(j) >= n) continue;
    const float sent = PlainFlush(piece.Flipped(v[j], j));
    own.residual_out[begin + PlaceOf(j)] = SubZ(acc[j], sent);
  }
}

struct RotatedTarget {
  const uint32_t* words;
  const float* scales;
  float* total;
  int64_t n, first;
  PhiloxKey key;
};

// A block decodes a piece of all workers.
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(5, 4))
    DecodeRotatedPieces(Table<RotatedTarget> table, const __grid_constant__ RotatedCode code,
                        int64_t workers, int64_t words_stride, int64_t scales_stride, float factor,
                        bool* finite) {
  __shared__ float room[kChunk], values[2 * kMostCentroids];
  __shared__ uint32_t signs[kMostRotated / kGroup + 4];
  const auto [own, begin, n] = table.Piece();
  const RotatedPiece piece(code, n, room, signs);
  // values[code] is the number that the code means: a centroid, negative where the code's highest
  // bit is set.
  static_assert(2 * kMostCentroids <= kThreads);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < 2 * code.count) {
    const float centroid = code.centroids[thread & (code.count - 1)];
    values[thread] = thread < code.count ? centroid : -centroid;
  }
  DrawSigns(own.key, code.block, signs);
  __syncthreads();
  const uint32_t* words = own.words + begin / kGroup * code.bits;
  // Each lane reads one scale, that of group Lane() % kEach of the warp. The other lanes get it
  // from this lane.
  const int32_t place = (WarpOf() * kEach + Lane() % kEach) * kWarp;
  const float* scales = own.scales + ((begin + place) >> piece.log_block);
  float sums[kEach] = {};
  for (int64_t w = 0; w < workers; ++w, words += words_stride, scales += scales_stride) {
    uint32_t codes[kEach];
    LoadPlanes(words, code.bits, piece.length, codes);
    const float scale = place < piece.length ? ScaleAsUsed(*scales) : 0.0f;
    float sent[kEach], scale_of[kEach], meant[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      sent[j] = values[codes[j]];
      scale_of[j] = __shfl_sync(kAllLanes, scale, j);
    }
    MulEachZ<kEach>(sent, scale_of, meant);
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[j] = AddZ(sums[j], meant[j]);
  }
  piece.Transform(sums);
#pragma unroll
  for (int j = 0; j < kEach; ++j) sums[j] = PlainFlush(piece.Flipped(sums[j], j));
  StoreTotals(sums, factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_encode_rotated(const EncodeInput* list, int64_t count, float multiplier,
                                           const PhiloxKey* keys, const RotatedCode* code,
                                           uint32_t* words, float* scales, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const RotatedItem item{{own.x, own.residual},
                           own.residual_out,
                           words,
                           scales,
                           own.n,
                           first,
                           keys[i],
                           multiplier,
                           0};
    words += code->WordsOf(own.n);
    scales += code->ScalesOf(own.n);
    return item;
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(EncodeRotatedPieces, count, next, finite, *code, finite);
}

GRACE_EXPORT int grace_cuda_decode_rotated(const DecodeOutput* list, int64_t count,
                                           RotatedRows rows, const PhiloxKey* keys,
                                           const RotatedCode* code, float factor, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  RotatedTarget* const items = launch.Take<RotatedTarget>(count);
  if (launch.OnlyMeasures()) return 0;
  int64_t words = 0, scales = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const int64_t n = list[i].n;
        const RotatedTarget item{
            rows.words + words, rows.scales + scales, list[i].total, n, first, keys[i]};
        words += code->WordsOf(n);
        scales += code->ScalesOf(n);
        return item;
      },
      finite);
  launch.Run(DecodeRotatedPieces, table.pieces, kThreads, table, *code, rows.workers, words, scales,
             factor, finite);
  return launch.error();
}
