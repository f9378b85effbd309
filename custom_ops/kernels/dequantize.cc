#include <algorithm>

#include "block_factors.h"
#include "quantize.h"
#include "words.h"

namespace grace {

// What becomes of a decoded value: it is the result, or it is added to 0 or to the result so far.
enum class Into { kPlain, kZero, kSum };

struct DequantizeJob {
  const float* scales;
  int64_t n;
  Quantization quantization;
};

}  // namespace grace

#define GRACE_KERNEL "each/dequantize.h"
#include "each_isa.h"

namespace grace {
namespace {

using Decode = decltype(&generic::DequantizeGroups<Into::kPlain>);

// Elements [begin, end) of one worker, the last group perhaps incomplete.
void DecodeRange(Decode decode, const DequantizeJob& row, int64_t begin, int64_t end, const uint32_t* words,
                 float* out) {
  const int64_t whole = begin + (end - begin) / kGroup * kGroup;
  words += PackedWords(begin, row.quantization.bits);
  decode(row, begin, whole, words, out);
  if (whole == end) return;
  float last[kGroup] = {};
  float* rest = out + (whole - begin);
  std::copy(rest, rest + (end - whole), last);
  decode(row, whole, whole + kGroup, words + PackedWords(whole - begin, row.quantization.bits),
         last);
  std::copy(last, last + (end - whole), rest);
}

}  // namespace

void Dequantize(const Executor& executor, const uint32_t* words, const float* scales, int64_t n,
                const Quantization& quantization, float* out) {
  const Decode decode = GRACE_CHOOSE(DequantizeGroups<Into::kPlain>);
  const DequantizeJob row{scales, n, quantization};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    DecodeRange(decode, row, begin, end, words, out + begin);
  });
}

void DequantizeSum(const Executor& executor, const uint32_t* words, const float* scales,
                   int64_t workers, int64_t n, const Quantization& quantization, float* out) {
  const Decode first = GRACE_CHOOSE(DequantizeGroups<Into::kZero>);
  const Decode next = GRACE_CHOOSE(DequantizeGroups<Into::kSum>);
  const int64_t row_words = PackedWords(n, quantization.bits);
  const int64_t blocks = CeilDiv(n, quantization.block);
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    if (workers == 0) std::fill(out + begin, out + end, 0.0f);
    // A stretch that stays in the first-level cache while all workers are added to it.
    constexpr int64_t kStretch = 4096;
    for (int64_t i = begin; i < end; i += kStretch) {
      const int64_t until = std::min(end, i + kStretch);
      for (int64_t w = 0; w < workers; ++w) {
        const DequantizeJob row{scales + w * blocks, n, quantization};
        DecodeRange(w ? next : first, row, i, until, words + w * row_words, out + i);
      }
    }
  });
}

}  // namespace grace
