#include "kernels/base/device/block_values.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/planes.h"
#include "kernels/base/device/totals.h"
#include "kernels/quantize/quantize_list.h"

namespace grace {
namespace {

struct DequantizeItem {
  const uint32_t* words;
  const float* scales;
  float* total;
  int64_t n, block, first;
};

struct DequantizeCall {
  int64_t workers, words_stride, scales_stride;
  int32_t levels, bits;
  float half, factor;
};

// A block decodes a piece of all workers and writes their sum once.
template <bool kMinMax>
__global__ void __launch_bounds__(kThreads, 5)
    DecodePieces(Table<DequantizeItem> table, DequantizeCall call, bool* finite) {
  constexpr int kFloats = kMinMax ? 2 : 1;
  const auto [own, begin, n] = table.Piece();
  const PieceBlocks blocks(begin, n, own.block);
  const uint32_t* words = own.words + begin / kGroup * call.bits;
  const float* scales = own.scales;
  const float half = call.half;
  float sum[kEach] = {};
#pragma unroll 1  // the elements of a thread are enough to keep reads under way
  for (int64_t w = 0; w < call.workers; ++w) {
    uint32_t codes[kEach];
    float worth[kEach], lowest[kEach];
    LoadPlanes(words, call.bits, n, codes);
    blocks.Give([=](int64_t b) { return UnitOf(scales[kFloats * b], half); }, worth);
    if (kMinMax) {
      blocks.Give([=](int64_t b) { return SignedFlush(scales[kFloats * b + 1]); }, lowest);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const auto code = static_cast<int32_t>(codes[j]), most = 2 * call.levels;
      const int32_t level = kMinMax ? code : (code < most ? code : most) - call.levels;
      float value = static_cast<float>(level) * worth[j];
      if (kMinMax) value = PlainFlush(lowest[j] + value);
      sum[j] = PlainFlush(sum[j] + value);
    }
    words += call.words_stride;
    scales += call.scales_stride;
  }
  StoreTotals(sum, call.factor, n, own.total + begin, finite);
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_dequantize_list(Rows rows, const Decoded* list, int64_t count,
                                            Quantization quantization, float factor, bool* finite,
                                            void* workspace, size_t* bytes, void* stream) {
  const auto item = [&](int64_t i, int64_t first) {
    const Decoded& own = list[i];
    const int64_t block = quantization.block ? quantization.block : own.n;
    return DequantizeItem{
        rows.words + own.words_at, rows.scales + own.scales_at, own.total, own.n, block, first};
  };
  const DequantizeCall call{rows.workers,
                            rows.words_stride,
                            rows.scales_stride,
                            quantization.levels,
                            quantization.bits,
                            quantization.Half(),
                            factor};
  const auto decode = quantization.minmax ? DecodePieces<true> : DecodePieces<false>;
  return Launch(workspace, bytes, stream).RunPieces(decode, count, item, finite, call, finite);
}
