#include <numeric>

#include "kernels/base/device/block_values.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/totals.h"
#include "kernels/codes/device/digits.h"
#include "kernels/codes/ternary.h"
#include "kernels/quantize/device/scales.h"

namespace grace {
namespace {

struct TernaryItem {
  DeviceInput source;
  uint32_t* words;
  int64_t n, first;
  PhiloxKey key;
};

// Of each piece the parts of what tells a scale, in an order that CUDA and the processor share.
struct MomentParts {
  double *sums, *squares;
  uint32_t* largest;
};

// A block measures a piece. Where kClip, half a warp adds to the sixteen sums and the other half to
// the sixteen sums of squares.
template <bool kClip>
__global__ void __launch_bounds__(kThreads)
    MeasureTernary(Table<TernaryItem> table, float multiplier, MomentParts parts, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, 0.0f, acc);
  NotePiece(acc, n, finite);
  if (kClip) {
    __shared__ float x[kChunk];
#pragma unroll
    for (int j = 0; j < kEach; ++j) x[PlaceOf(j)] = SignedFlush(acc[j]);
    __syncthreads();
    if (WarpOf() == 0) {
      double sum = 0.0;
      const bool square = Lane() >= kSums;
#pragma unroll 8
      for (int i = Lane() % kSums; i < kChunk; i += kSums) {
        const double v = x[i];
        sum += square ? v * v : v;
      }
#pragma unroll
      for (int lanes = 1; lanes < kSums; lanes *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      if (Lane() == 0) parts.sums[blockIdx.x] = sum;
      if (Lane() == kSums) parts.squares[blockIdx.x] = sum;
    }
  }
  MeasureBlocks<Norm::kMax>(acc, static_cast<int32_t>(n), static_cast<int32_t>(kChunk),
                            [=](int32_t, uint32_t value) { parts.largest[blockIdx.x] = value; });
}

// A block joins the parts of a tensor; one that has none gets a scale of 0.
template <bool kClip>
__global__ void __launch_bounds__(kThreads)
    JoinTernary(Table<TernaryItem> table, MomentParts parts, float clip, float* scales) {
  const TernaryItem own = table.items[blockIdx.x];
  const int64_t count = (own.n + kChunk - 1) / kChunk;
  const uint32_t largest = JoinParts<Norm::kMax>(parts.largest + own.first, count);
  float scale = __uint_as_float(largest);
  if (kClip && count) {
    const double each = 1.0 / static_cast<double>(own.n);
    const double mean = JoinParts<Norm::kL2>(parts.sums + own.first, count) * each;
    const double square = JoinParts<Norm::kL2>(parts.squares + own.first, count) * each;
    const double variance = square - mean * mean;
    const auto bound = static_cast<float>(sqrt(variance < 0.0 ? 0.0 : variance) * clip);
    if (variance > square * 0x1p-32 && bound < scale) scale = bound;
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale < kSmallestScale ? 0.0f : scale;
}

struct TernaryCall {
  int64_t piece;
  int32_t bits, digits;
  float multiplier;
  int32_t unused;
};

// A block encodes a piece: first the digits of its elements, then words of these.
__global__ void __launch_bounds__(kThreads)
    EncodeTernary(Table<TernaryItem> table, TernaryCall call, const float* clips,
                  const float* scales) {
  __shared__ int8_t digits[kChunk];
  const int32_t i = table.Find(blockIdx.x);
  const TernaryItem own = table.items[i];
  const int64_t begin = (blockIdx.x - own.first) * call.piece;
  const int64_t n = own.n - begin < call.piece ? own.n - begin : call.piece;
  float acc[kEach];
  uint32_t random[kEach];
  LoadPiece(own.source, call.multiplier, begin, n, 0.0f, acc);
  DrawCoarsePiece(own.key, begin, random);
  const float clip = SignedFlush(clips[i]), inverse = InverseOf(scales[i], 1.0f);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    float size = PlainFlush(fabsf(acc[j]));
    size = size < clip ? size : clip;
    const float sum = size * inverse + static_cast<float>(random[j] >> 8) * 0x1p-24f;
    const auto rounded = static_cast<int32_t>(sum < 1.0f ? sum : 1.0f);
    digits[PlaceOf(j)] = static_cast<int8_t>(__float_as_int(acc[j]) < 0 ? -rounded : rounded);
  }
  __syncthreads();
  const Digits places(n, call.digits);
  uint32_t* const words = own.words + begin / call.digits;
  for (int32_t w = threadIdx.x; w < places.Words(); w += kThreads) {
    int32_t first, step;
    places.Walk(w, &first, &step);
    uint32_t word = 0;
    for (int32_t k = 0; k < call.digits; ++k) {
      // The first trit is the highest digit, the first field the lowest.
      const int32_t at = first + step * (call.bits == kTrits ? k : call.digits - 1 - k);
      word = call.bits == kTrits ? 3 * word : word << call.bits;
      if (at < n) word += static_cast<uint32_t>(static_cast<int32_t>(digits[at]));
    }
    if (call.bits == kTrits) {
      constexpr double kRound = 0x1.8p52;
      const double number = static_cast<int32_t>(word);
      word = static_cast<uint32_t>(
          static_cast<int32_t>((number * kFractionOfTrits + kRound) - kRound));
    }
    words[w] = word;
  }
}

struct TernaryDecodeItem {
  const uint32_t* words;
  const float* scale;
  float* total;
  int64_t n, first;
};

struct TernaryDecodeCall {
  int64_t workers, words_stride, scales_stride, piece;
  int32_t bits, digits;
  uint32_t half, bias;
  float factor;
};

// A block decodes a piece of all workers. The fraction of trits after digit d is the word times
// 3^d, as the product drops the first d digits.
template <bool kIsTrits>
__global__ void __launch_bounds__(kThreads)
    DecodeTernary(Table<TernaryDecodeItem> table, TernaryDecodeCall call, bool* finite) {
  const auto [own, begin, n] = table.Piece(call.piece);
  const Digits places(n, call.digits);
  float sum[kEach];
  int32_t words_of[kEach];
  uint32_t shifts[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    int32_t digit = 0;
    words_of[j] = 0;
    if (PlaceOf(j) < n) places.Find(PlaceOf(j), &words_of[j], &digit);
    shifts[j] = digit * call.bits;
    if (kIsTrits) {
      shifts[j] = 1;
      for (uint32_t power = 3; digit; digit >>= 1, power *= power) {
        if (digit & 1) shifts[j] *= power;
      }
    }
    sum[j] = 0.0f;
  }
  const uint32_t* words = own.words + begin / call.digits;
  const float* own_scale = own.scale;
#pragma unroll 1  // the elements of a thread are enough to keep reads under way
  for (int64_t w = 0; w < call.workers; ++w) {
    const float scale = UnitOf(*own_scale, 1.0f);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      uint32_t word = words[words_of[j]];
      float digit;
      if (kIsTrits) {
        const auto fraction = static_cast<int32_t>(word * shifts[j]);
        digit = fraction > kSixth ? 1.0f : fraction < -kSixth ? -1.0f : 0.0f;
      } else {
        word = (word + call.bias) >> shifts[j] & (2 * call.half - 1);
        digit = static_cast<float>(static_cast<int32_t>(word - call.half));
      }
      sum[j] = PlainFlush(sum[j] + digit * scale);
    }
    words += call.words_stride;
    own_scale += call.scales_stride;
  }
  StoreTotals(sum, call.factor, n, own.total + begin, finite);
}

// Elements of a piece of whole groups, also of those of random words.
int64_t PieceOf(int32_t bits) {
  const int64_t group = std::lcm(kWordsOfGroup * DigitsOf(bits), kGroup);
  return kChunk / group * group;
}

// Without keys and words what is sent is to be measured only.
Table<TernaryItem> SendTernary(Launch& launch, TernaryItem* items, const EncodeInput* list,
                               int64_t count, int32_t bits, int64_t piece, const PhiloxKey* keys,
                               uint32_t* words, bool* finite) {
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const TernaryItem item{
        {own.x, own.residual}, words, own.n, first, keys ? keys[i] : PhiloxKey{}};
    if (words) words += TernaryWords(own.n, bits);
    return item;
  };
  return launch.SendPieces(items, count, next, finite, piece);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_ternary_scales(const EncodeInput* list, int64_t count, float multiplier,
                                           float clip, float* scales, bool* finite, void* workspace,
                                           size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t pieces = 0;
  for (int64_t i = 0; i < count; ++i) pieces += CeilDiv(list[i].n, kChunk);
  TernaryItem* const items = launch.Take<TernaryItem>(count);
  const int64_t moments = clip > 0.0f ? pieces : 0;
  double* const sums = launch.Take<double>(moments);
  double* const squares = launch.Take<double>(moments);
  const MomentParts parts{sums, squares, launch.Take<uint32_t>(pieces)};
  if (launch.OnlyMeasures()) return 0;
  const auto table =
      SendTernary(launch, items, list, count, kTrits, kChunk, nullptr, nullptr, finite);
  const bool clips = clip > 0.0f;
  launch.Run(clips ? MeasureTernary<true> : MeasureTernary<false>, pieces, kThreads, table,
             multiplier, parts, finite);
  launch.Run(clips ? JoinTernary<true> : JoinTernary<false>, count, kThreads, table, parts, clip,
             scales);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_ternary_encode(const EncodeInput* list, int64_t count, float multiplier,
                                           const float* clips, const float* scales, int32_t bits,
                                           const PhiloxKey* keys, uint32_t* words, void* workspace,
                                           size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  TernaryItem* const items = launch.Take<TernaryItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const TernaryCall call{PieceOf(bits), bits, static_cast<int32_t>(DigitsOf(bits)), multiplier, 0};
  const auto table =
      SendTernary(launch, items, list, count, bits, call.piece, keys, words, nullptr);
  launch.Run(EncodeTernary, table.pieces, kThreads, table, call, clips, scales);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_ternary_decode(TernaryRows rows, const DecodeOutput* list,
                                           int64_t count, int32_t bits, float factor, bool* finite,
                                           void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  TernaryDecodeItem* const items = launch.Take<TernaryDecodeItem>(count);
  if (launch.OnlyMeasures()) return 0;
  const int64_t piece = PieceOf(bits);
  int64_t words = 0;
  const auto next = [&](int64_t i, int64_t first) {
    const TernaryDecodeItem item{rows.words + words, rows.scales + i, list[i].total, list[i].n,
                                 first};
    words += TernaryWords(list[i].n, bits);
    return item;
  };
  const auto table = launch.SendPieces(items, count, next, finite, piece);
  const TernaryDecodeCall call{rows.workers, words,        count,
                               piece,        bits,         static_cast<int32_t>(DigitsOf(bits)),
                               HalfOf(bits), BiasOf(bits), factor};
  launch.Run(bits == kTrits ? DecodeTernary<true> : DecodeTernary<false>, table.pieces, kThreads,
             table, call, finite);
  return launch.error();
}
