#include "kernels/base/device/block_values.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/byte_codes.h"
#include "kernels/quantize/device/scales.h"

namespace grace {
namespace {

__device__ constexpr TreeTable kDeviceTree;

// A tensor that is encoded. Powers have no scales.
struct ByteItem {
  DeviceInput source;
  float* residual_out;
  uint32_t* words;
  MeasuredBlocks measured;
  int64_t n, first, first_part, first_block;
  PhiloxKey key;
  float multiplier;
  int32_t unused;
};

__device__ uint32_t SignByte(float x) { return __float_as_uint(x) >> 24 & 0x80; }

// TreeCode and TreeValue of byte_codes-inl.h. A product that is denormal rounds to code 0 as zero
// does, but one with a scale must become zero.
__device__ uint32_t TreeCode(float x, float inverse) {
  const float a = PlainFlush(fabsf(x)) * inverse;
  float code = a * kDeviceTree.slopes[0];
#pragma unroll
  for (int k = 1; k < 7; ++k) {
    const float other = a * kDeviceTree.slopes[k] + kDeviceTree.starts[k];
    code = other < code ? other : code;
  }
  code = rintf(code < 127.0f ? code : 127.0f);  // makes NaN the largest code
  return static_cast<uint32_t>(static_cast<int32_t>(code)) | SignByte(x);
}

__device__ float TreeValue(uint32_t byte, float scale) {
  const uint32_t code = byte & 0x7f;
  const auto c = static_cast<float>(code);
  const uint32_t power = __float_as_uint(c) & kInfinity;
  const float count = (c + 1.0f) * 9.0f - __uint_as_float(power) * 8.0f;
  const float unit = kDeviceTree.units[code ? (power >> 23) - 127 : 0];
  const float value = MulZ((code ? count : 0.0f) * unit, scale);
  return __uint_as_float(__float_as_uint(value) | (byte & 0x80) << 24);
}

__device__ uint32_t PowerCode(float x, uint32_t random) {
  const uint32_t sum = (__float_as_uint(x) & kMagnitude) + (random >> 9);
  const auto code = static_cast<int32_t>((sum >> 23) - kPowerOffset);
  return static_cast<uint32_t>(code < 0 ? 0 : code < 127 ? code : 127) | SignByte(x);
}

__device__ float PowerValue(uint32_t byte) {
  const uint32_t code = byte & 0x7f, bits = code ? (code + kPowerOffset) << 23 : 0;
  return __uint_as_float(bits | (byte & 0x80) << 24);
}

// Stores the codes of the first n elements of a piece, whose words begin at `words`, and zeros to
// the end of the last word. All lanes of a warp must call it.
__device__ void StoreBytes(const uint32_t* codes, int64_t n, uint32_t* words) {
  constexpr int kWords = kEach * kWarp / 4;
  __shared__ uint32_t packed[kThreads / kWarp][kWords];
  auto* const bytes = reinterpret_cast<uint8_t*>(packed[WarpOf()]);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    bytes[j * kWarp + Lane()] = static_cast<uint8_t>(PlaceOf(j) < n ? codes[j] : 0);
  }
  __syncwarp();
  const int64_t first = WarpOf() * kWords;
  for (int i = Lane(); i < kWords; i += kWarp) {
    if (4 * (first + i) < n) words[first + i] = packed[WarpOf()][i];
  }
}

// x less what was sent of it, of which zero has no sign.
__device__ float Left(float x, float sent) { return SubZ(x, 0.0f + sent); }

// A block encodes a piece; where kMeasure, it holds whole blocks and their scales come first.
template <bool kMeasure>
__global__ void __launch_bounds__(kThreads)
    EncodeTrees(Table<ByteItem> table, int64_t piece, bool* finite) {
  const auto [own, begin, n] = table.Piece(piece);
  float* const scales = own.measured.scales;
  float acc[kEach], factors[kEach], worth[kEach];
  uint32_t codes[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  const PieceBlocks blocks(begin, n, own.measured.block);
  if (kMeasure) {
    float* const first = scales + blocks.first;
    MeasureBlocks<Norm::kMax>(
        acc, static_cast<int32_t>(n), static_cast<int32_t>(own.measured.block),
        [=](int32_t b, uint32_t value) { Measured<Norm::kMax>::Put(value, first + b); });
    __syncthreads();
  }
  blocks.Give([=](int64_t b) { return scales[b] < kSmallestScale ? 0.0f : 4.0f / scales[b]; },
              factors);
  if (own.residual_out) blocks.Give([=](int64_t b) { return UnitOf(scales[b], 1.0f); }, worth);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    codes[j] = TreeCode(acc[j], factors[j]);
    if (!own.residual_out || PlaceOf(j) >= n) continue;
    own.residual_out[begin + PlaceOf(j)] = Left(acc[j], TreeValue(codes[j], worth[j]));
  }
  StoreBytes(codes, n, own.words + begin / 4);
}

__global__ void __launch_bounds__(kThreads) EncodePowerPieces(Table<ByteItem> table, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float acc[kEach];
  uint32_t random[kEach], codes[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  DrawCoarsePiece(own.key, begin, random);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    codes[j] = PowerCode(acc[j], random[j]);
    if (!own.residual_out || PlaceOf(j) >= n) continue;
    own.residual_out[begin + PlaceOf(j)] = Left(acc[j], PowerValue(codes[j]));
  }
  StoreBytes(codes, n, own.words + begin / 4);
}

struct ByteTarget {
  const uint32_t* words;
  const float* scales;
  float* total;
  int64_t n, block, first;
};

// A block decodes a piece of all workers.
template <bool kTree>
__global__ void __launch_bounds__(kThreads, 2)
    DecodeBytes(Table<ByteTarget> table, int64_t workers, int64_t words_stride,
                int64_t scales_stride, float factor, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  const PieceBlocks blocks(begin, n, own.block);
  const float* scales = own.scales;
  float sum[kEach] = {};
#pragma unroll 1  // the elements of a thread are enough to keep reads under way
  for (int64_t w = 0; w < workers; ++w) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(own.words + w * words_stride) + begin;
    float worth[kEach];
    if (kTree) blocks.Give([=](int64_t b) { return UnitOf(scales[b], 1.0f); }, worth);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t byte = PlaceOf(j) < n ? bytes[PlaceOf(j)] : 0;
      sum[j] = PlainFlush(sum[j] + (kTree ? TreeValue(byte, worth[j]) : PowerValue(byte)));
    }
    scales += scales_stride;
  }
  StoreTotals(sum, factor, n, own.total + begin, finite);
}

// Blocks that fit into pieces are measured while they are encoded.
bool AtOnce(int64_t block) { return block && block <= kChunk; }

int DecodeList(const DecodeOutput* list, int64_t count, const ByteRows& rows, bool tree,
               int64_t block, float factor, bool* finite, Launch launch) {
  ByteTarget* const items = launch.Take<ByteTarget>(count);
  if (launch.OnlyMeasures()) return 0;
  int64_t words = 0, scales = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const int64_t n = list[i].n, own = BlockOf(block, n);
        const ByteTarget item{rows.words + words,
                              tree ? rows.scales + scales : nullptr,
                              list[i].total,
                              n,
                              own,
                              first};
        words += ByteWords(n);
        scales += CeilDiv(n, own);
        return item;
      },
      finite);
  launch.Run(tree ? DecodeBytes<true> : DecodeBytes<false>, table.pieces, kThreads, table,
             rows.workers, words, tree ? scales : 0, factor, finite);
  return launch.error();
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_encode_tree(const EncodeInput* list, int64_t count, float multiplier,
                                        int64_t block, uint32_t* words, float* scales, bool* finite,
                                        void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  const auto measured = [&](int64_t i) {
    return CountParts(scales, list[i].n, BlockOf(block, list[i].n));
  };
  const int64_t piece = AtOnce(block) ? kChunk / block * block : kChunk;
  int64_t parts = 0, blocks = 0;
  for (int64_t i = 0; i < count; ++i) parts += measured(i).parts, blocks += measured(i).blocks;
  ByteItem* const items = launch.Take<ByteItem>(count);
  uint32_t* const measures = launch.Take<uint32_t>(AtOnce(block) ? 0 : parts);
  if (launch.OnlyMeasures()) return 0;
  int64_t first_part = 0, first_block = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const EncodeInput& own = list[i];
        const ByteItem item{{own.x, own.residual},
                            own.residual_out,
                            words,
                            measured(i),
                            own.n,
                            first,
                            first_part,
                            first_block,
                            {},
                            multiplier,
                            0};
        words += ByteWords(own.n);
        scales += item.measured.blocks;
        first_part += item.measured.parts;
        first_block += item.measured.blocks;
        return item;
      },
      finite, piece);
  if (!AtOnce(block)) {
    launch.Run(MeasurePieces<Norm::kMax, ByteItem>, parts, kThreads, table, measures);
    launch.Run(JoinPieces<Norm::kMax, ByteItem>, blocks, kThreads, table, measures);
  }
  launch.Run(AtOnce(block) ? EncodeTrees<true> : EncodeTrees<false>, table.pieces, kThreads, table,
             piece, finite);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_encode_powers(const EncodeInput* list, int64_t count, float multiplier,
                                          const PhiloxKey* keys, uint32_t* words, bool* finite,
                                          void* workspace, size_t* bytes, void* stream) {
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const ByteItem item{{own.x, own.residual},
                        own.residual_out,
                        words,
                        {},
                        own.n,
                        first,
                        0,
                        0,
                        keys[i],
                        multiplier,
                        0};
    words += ByteWords(own.n);
    return item;
  };
  return Launch(workspace, bytes, stream).RunPieces(EncodePowerPieces, count, next, finite, finite);
}

GRACE_EXPORT int grace_cuda_decode_tree(const DecodeOutput* list, int64_t count, ByteRows rows,
                                        int64_t block, float factor, bool* finite, void* workspace,
                                        size_t* bytes, void* stream) {
  return DecodeList(list, count, rows, true, block, factor, finite,
                    Launch(workspace, bytes, stream));
}

GRACE_EXPORT int grace_cuda_decode_powers(const DecodeOutput* list, int64_t count, ByteRows rows,
                                          float factor, bool* finite, void* workspace,
                                          size_t* bytes, void* stream) {
  return DecodeList(list, count, rows, false, 0, factor, finite, Launch(workspace, bytes, stream));
}
