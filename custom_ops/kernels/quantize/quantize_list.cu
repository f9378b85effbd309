#include <numeric>

#include "kernels/base/device/block_values.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/planes.h"
#include "kernels/quantize/device/scales.h"
#include "kernels/quantize/quantize_list.h"

namespace grace {
namespace {

struct QuantizeItem {
  DeviceInput source;
  uint32_t* words;
  float* residual_out;
  MeasuredBlocks measured;
  int64_t n, first, first_part, first_block;
  float multiplier;
  uint32_t variable_draw, stratum;
  int32_t unused;
};

// What is equal for all tensors. `piece` elements are encoded at a time.
struct QuantizeCall {
  int64_t piece;
  int32_t levels, bits;
  float half;
  bool coarse;
  PhiloxKey key;
};

// Where blocks neither fit into pieces of whole groups nor are larger than a piece: a block of
// threads writes the scales of as many blocks as fit into a piece.
template <Norm kNorm>
__global__ void __launch_bounds__(kThreads) ScalePieces(Table<QuantizeItem> table) {
  const QuantizeItem own = table.items[table.Find(blockIdx.x, &QuantizeItem::first_part)];
  const auto block = static_cast<int32_t>(own.measured.block);
  const int32_t blocks = static_cast<int32_t>(kChunk) / block;
  const int64_t first = (blockIdx.x - own.first_part) * blocks, begin = first * block;
  const int64_t n = own.n - begin < blocks * block ? own.n - begin : blocks * block;
  constexpr int kFloats = kNorm == Norm::kMinMax ? 2 : 1;
  float acc[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  float* const scales = own.measured.scales + kFloats * first;
  MeasureBlocks<kNorm>(acc, static_cast<int32_t>(n), block,
                       [=](int32_t b, MeasuredValue<kNorm> value) {
                         Measured<kNorm>::Put(value, scales + kFloats * b);
                       });
}

// What becomes of x, in levels, as Level of quantize-inl.h. Of products a denormal may stay one:
// it rounds to level 0 as zero does.
template <bool kStochastic, bool kMinMax>
__device__ int32_t LevelOf(float x, float lowest, float factor, uint32_t random, float top) {
  float a = PlainFlush(kMinMax ? x : fabsf(x));
  if (kMinMax) a = SubZ(a, lowest);
  float q = a * factor;
  if (kStochastic) q += static_cast<float>(random >> 8) * 0x1p-24f;
  q = q < top ? q : top;  // makes NaN the top level
  const auto level = static_cast<int32_t>(kStochastic ? q : rintf(q));
  return !kMinMax && __float_as_int(x) < 0 ? -level : level;
}

// A block encodes a piece; where kMeasure, it holds whole blocks and their scales come first.
template <Norm kNorm, bool kMeasure, bool kStochastic>
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(4, 2))
    EncodePieces(Table<QuantizeItem> table, QuantizeCall call, bool* finite) {
  constexpr bool kMinMax = kNorm == Norm::kMinMax;
  constexpr int kFloats = kMinMax ? 2 : 1;
  const auto [own, begin, n] = table.Piece(call.piece);
  float* const scales = own.measured.scales;
  float acc[kEach], factors[kEach], lowest[kEach];
  LoadPiece(own.source, own.multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  const PieceBlocks blocks(begin, n, own.measured.block);
  if (kMeasure) {
    float* const first = scales + kFloats * blocks.first;
    MeasureBlocks<kNorm>(acc, static_cast<int32_t>(n), static_cast<int32_t>(own.measured.block),
                         [=](int32_t b, MeasuredValue<kNorm> value) {
                           Measured<kNorm>::Put(value, first + kFloats * b);
                         });
    __syncthreads();
  }
  const float half = call.half;
  blocks.Give([=](int64_t b) { return InverseOf(scales[kFloats * b], half); }, factors);
  if (kMinMax) blocks.Give([=](int64_t b) { return scales[kFloats * b + 1]; }, lowest);
  uint32_t random[kEach], codes[kEach];
  if (kStochastic) {
    call.key.variable_draw = own.variable_draw;
    if (call.coarse) {
      DrawCoarsePiece(call.key, begin, random);
    } else {
      DrawPiece(call.key, begin, random);
    }
  }
  const auto top = static_cast<float>(call.levels);
  const int32_t zero = kMinMax ? 0 : call.levels;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t drawn = kStochastic ? random[j] + own.stratum : 0;
    const float least = kMinMax ? lowest[j] : 0.0f;
    const int32_t level = LevelOf<kStochastic, kMinMax>(acc[j], least, factors[j], drawn, top);
    codes[j] = PlaceOf(j) < n ? static_cast<uint32_t>(zero + level) : 0;
  }
  if (own.residual_out) {
    float* const worth = factors;
    blocks.Give([=](int64_t b) { return UnitOf(scales[kFloats * b], half); }, worth);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) >= n) continue;
      float value = static_cast<float>(static_cast<int32_t>(codes[j]) - zero) * worth[j];
      if (kMinMax) value = PlainFlush(lowest[j] + value);
      own.residual_out[begin + PlaceOf(j)] = SubZ(acc[j], value);
    }
  }
  StorePlanes(codes, call.bits, n, own.words + begin / kGroup * call.bits);
}

template <Norm kNorm, bool kMeasure>
void RunEncode(Launch& launch, const Table<QuantizeItem>& table, const QuantizeCall& call,
               bool stochastic, bool* finite) {
  const auto encode =
      stochastic ? EncodePieces<kNorm, kMeasure, true> : EncodePieces<kNorm, kMeasure, false>;
  launch.Run(encode, table.pieces, kThreads, table, call, finite);
}

// How a list is cut.
struct QuantizeCuts {
  explicit QuantizeCuts(const ListCode& code) {
    const int64_t block = code.quantization.block;
    fits = block && block <= kChunk;
    const int64_t both = fits ? std::lcm(block, kGroup) : 0;
    at_once = both && both <= kChunk;
    piece = at_once ? kChunk / both * both : kChunk;
    measured = fits ? kChunk / block * block : 0;
  }
  bool fits, at_once;       // blocks into pieces; into pieces of whole groups
  int64_t piece, measured;  // the elements of a piece to encode, to measure where `fits`
};

template <Norm kNorm>
void RunQuantize(Launch& launch, const Table<QuantizeItem>& table, const QuantizeCuts& cuts,
                 int64_t parts, int64_t blocks, void* room, const QuantizeCall& call,
                 bool stochastic, bool* finite) {
  if (cuts.at_once) return RunEncode<kNorm, true>(launch, table, call, stochastic, finite);
  if (cuts.fits) {
    launch.Run(ScalePieces<kNorm>, parts, kThreads, table);
  } else {
    auto* const measures = static_cast<MeasuredValue<kNorm>*>(room);
    launch.Run(MeasurePieces<kNorm, QuantizeItem>, parts, kThreads, table, measures);
    launch.Run(JoinPieces<kNorm, QuantizeItem>, blocks, kThreads, table, measures);
  }
  // Once there are scales, l2 is as the maximum.
  constexpr Norm kKind = kNorm == Norm::kMinMax ? Norm::kMinMax : Norm::kMax;
  RunEncode<kKind, false>(launch, table, call, stochastic, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_quantize_list(const Encoded* list, int64_t count, ListCode code,
                                          const PhiloxKey* key, bool* finite, void* workspace,
                                          size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  const Quantization& q = code.quantization;
  const QuantizeCuts cuts(code);
  const auto measured = [&](int64_t i) {
    MeasuredBlocks own = CountParts(list[i].scales, list[i].n, code.BlockOf(list[i].n));
    if (cuts.fits) own.parts = CeilDiv(list[i].n, cuts.measured);
    return own;
  };
  int64_t parts = 0, blocks = 0;
  for (int64_t i = 0; i < count; ++i) parts += measured(i).parts, blocks += measured(i).blocks;
  QuantizeItem* const items = launch.Take<QuantizeItem>(count);
  void* const room = launch.Take<uint64_t>(cuts.fits ? 0 : parts);
  if (launch.OnlyMeasures()) return 0;
  int64_t first_part = 0, first_block = 0;
  const auto table = launch.SendPieces(
      items, count,
      [&](int64_t i, int64_t first) {
        const Encoded& own = list[i];
        const QuantizeItem item{{own.source.x, own.source.residual},
                                own.words,
                                own.residual_out,
                                measured(i),
                                own.n,
                                first,
                                first_part,
                                first_block,
                                own.source.multiplier,
                                own.variable_draw,
                                q.Coarse() ? own.stratum & 0xffff0000u : own.stratum,
                                0};
        first_part += item.measured.parts;
        first_block += item.measured.blocks;
        return item;
      },
      finite, cuts.piece);
  const QuantizeCall call{cuts.piece, q.levels,   q.bits,
                          q.Half(),   q.Coarse(), key ? *key : PhiloxKey{}};
  const auto run = code.norm == Norm::kMinMax ? RunQuantize<Norm::kMinMax>
                   : code.norm == Norm::kL2   ? RunQuantize<Norm::kL2>
                                              : RunQuantize<Norm::kMax>;
  run(launch, table, cuts, parts, blocks, room, call, key != nullptr, finite);
  return launch.error();
}
