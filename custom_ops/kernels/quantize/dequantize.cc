#include <algorithm>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "kernels/quantize/block_factors.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_list.h"

namespace grace {

// What a decoded value is added to: 0, or the result so far.
enum class Into { kZero, kSum };

struct DequantizeJob {
  const float* scales;
  int64_t n;
  Quantization quantization;
  float factor = 1.0f;

  // Whether the decoder may skip its checks in a block with this unit. Two things must hold for
  // every level: 0 + level * unit has the bits of level * unit, and its product with the factor is
  // finite. A unit above 0 is never denormal. With a unit of 0 a negative level gives -0, and the
  // addition makes it +0.
  bool NeedsNoChecks(float unit) const {
    const float most = static_cast<float>(quantization.levels) * unit * factor;
    return unit > 0.0f && (BitsOf(most) & kMagnitude) < kInfinity;
  }
};

}  // namespace grace

#define GRACE_KERNEL "kernels/quantize/dequantize-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using Decode = decltype(&generic::DequantizeGroups<Into::kZero, false, false>);

// Elements [begin, end) of one worker, the last group perhaps incomplete; `words` are the tensor's.
bool DecodeRange(Decode decode, const DequantizeJob& job, int64_t begin, int64_t end,
                 const uint32_t* words, float* out) {
  const int64_t whole = begin + (end - begin) / kGroup * kGroup;
  words += PackedWords(begin, job.quantization.bits);
  bool finite = decode(job, begin, whole, words, out);
  if (whole == end) return finite;
  float last[kGroup] = {};
  float* rest = out + (whole - begin);
  std::copy(rest, rest + (end - whole), last);
  decode(job, whole, whole + kGroup, words + PackedWords(whole - begin, job.quantization.bits),
         last);
  std::copy(last, last + (end - whole), rest);
  // The padding, which counts as the lowest code, may overflow where nothing else does.
  for (int64_t i = 0; i < end - whole; ++i) {
    finite &= (BitsOf(rest[i]) & kInfinity) != kInfinity;
  }
  return finite;
}

}  // namespace

template <Into kInto, bool kLast>
static Decode ChooseDecode(bool minmax) {
  return minmax ? GRACE_CHOOSE(DequantizeGroups<kInto, kLast, true>)
                : GRACE_CHOOSE(DequantizeGroups<kInto, kLast, false>);
}

bool DequantizeList(const Executor& executor, const Rows& rows, const std::vector<Decoded>& list,
                    const Quantization& quantization, float factor) {
  const bool minmax = quantization.minmax;
  const Decode first = ChooseDecode<Into::kZero, false>(minmax);
  const Decode next = ChooseDecode<Into::kSum, false>(minmax);
  const Decode only = ChooseDecode<Into::kZero, true>(minmax);
  const Decode last = ChooseDecode<Into::kSum, true>(minmax);
  const auto decode = [&](size_t i, int64_t begin, int64_t count, float* total) {
    const Decoded& own = list[i];
    Quantization code = quantization;
    if (code.block == 0) code.block = own.n;
    bool finite = true;
    for (int64_t w = 0; w < rows.workers; ++w) {
      const bool ends = w + 1 == rows.workers;
      const DequantizeJob job{rows.scales + w * rows.scales_stride + own.scales_at, own.n, code,
                              factor};
      finite &=
          DecodeRange(w ? (ends ? last : next) : (ends ? only : first), job, begin, begin + count,
                      rows.words + w * rows.words_stride + own.words_at, total);
    }
    return finite;
  };
  return DecodeChunks(executor, list, CutAt{kGroup}, decode);
}

}  // namespace grace
