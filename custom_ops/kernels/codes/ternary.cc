#include "kernels/codes/ternary.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "kernels/base/list.h"
#include "kernels/base/philox_blocks.h"
#include "kernels/quantize/block_factors.h"
#include "kernels/quantize/scales.h"

namespace grace {

// What is alike for all groups of a tensor.
struct TernaryJob {
  int32_t bits;
  float clip, inverse;         // to encode
  float scale, factor = 1.0f;  // to decode; of fields too:
  uint32_t half = 0, bias = 0;
};

}  // namespace grace

#define GRACE_KERNEL "kernels/base/coarse_words-inl.h"
#include "kernels/base/each_isa.h"
#define GRACE_KERNEL "kernels/codes/ternary-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// Of at most kChunk elements.
struct Moments {
  double sum = 0.0, square = 0.0;
  uint32_t largest = 0;
};

Moments MomentsOf(const float* x, int64_t n) {
  const auto add = GRACE_CHOOSE(AddMoments);
  const DenormalsAreZero scope;
  float padded[kChunk];
  if (n % kSums) {
    std::fill(std::copy(x, x + n, padded), padded + CeilDiv(n, kSums) * kSums, 0.0f);
    x = padded;
  }
  double sums[kSums], squares[kSums];
  Moments moments;
  moments.largest = add(x, CeilDiv(n, kSums), sums, squares);
  moments.sum = PairwiseSum(sums, kSums);
  moments.square = PairwiseSum(squares, kSums);
  return moments;
}

float ScaleFrom(const std::vector<Moments>& parts, int64_t n, float clip) {
  std::vector<double> sums, squares;
  uint32_t largest = 0;
  for (const Moments& part : parts) {
    sums.push_back(part.sum);
    squares.push_back(part.square);
    largest = std::max(largest, part.largest);
  }
  float scale = FloatOf(largest);
  if (clip > 0.0f) {
    const int64_t count = parts.size();
    sums.push_back(0.0);
    squares.push_back(0.0);
    const double each = 1.0 / static_cast<double>(n);
    const double mean = PairwiseSum(sums.data(), count) * each;
    const double square = PairwiseSum(squares.data(), count) * each;
    const double variance = square - mean * mean;
    const auto bound = static_cast<float>(std::sqrt(std::max(variance, 0.0)) * clip);
    if (variance > square * 0x1p-32 && bound < scale) scale = bound;
  }
  return scale < kSmallestScale ? 0.0f : scale;
}

}  // namespace

bool TernaryScales(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, float clip, float* scales) {
  std::vector<std::vector<Moments>> parts;
  for (const EncodeInput& own : sources) parts.emplace_back(CeilDiv(own.n, kChunk));
  std::atomic<bool> finite{true};
  LoopOver(sources).For(executor, CutAt{kChunk}, [&](size_t i, int64_t begin, int64_t end) {
    alignas(64) float room[kChunk];
    const Accumulated source{sources[i].x, sources[i].residual, multiplier};
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const float* x = source.At(at, n, room);
      Moments& part = parts[i][at / kChunk];
      if (clip > 0.0f) {
        part = MomentsOf(x, n);
      } else {
        part.largest = MeasureOf(x, n, Norm::kMax).largest;
      }
      if (part.largest >= kInfinity) finite.store(false, std::memory_order_relaxed);
    }
  });
  for (size_t i = 0; i < sources.size(); ++i) scales[i] = ScaleFrom(parts[i], sources[i].n, clip);
  return finite;
}

namespace {

// Calls visit(element, place) for all elements of an incomplete group of m, whose places are in a
// whole group.
template <class Visit>
void ForTail(int64_t m, int64_t digits, const Visit& visit) {
  const int64_t words = CeilDiv(m, digits);
  for (int64_t e = 0; e < m; ++e) visit(e, e / words * kWordsOfGroup + e % words);
}

// The most elements of a group.
constexpr int64_t kMostOfGroup = kWordsOfGroup * DigitsOf(kTrits);

using EncodeFunction = decltype(&generic::EncodeGroups<true>);

// n elements from the beginning of a group on, the last group perhaps incomplete.
void EncodeRange(EncodeFunction encode, const TernaryJob& job, const float* x,
                 const uint32_t* random, int64_t n, uint32_t* words) {
  const int64_t digits = DigitsOf(job.bits), group = kWordsOfGroup * digits;
  const int64_t whole = n / group, rest = n % group;
  encode(job, x, random, whole, words);
  if (rest == 0) return;
  float last[kMostOfGroup] = {};
  uint32_t drawn[kMostOfGroup] = {}, packed[kWordsOfGroup];
  ForTail(rest, digits, [&](int64_t element, int64_t place) {
    last[place] = x[whole * group + element];
    drawn[place] = random[whole * group + element];
  });
  encode(job, last, drawn, 1, packed);
  std::copy_n(packed, CeilDiv(rest, digits), words + whole * kWordsOfGroup);
}

}  // namespace

void TernaryEncode(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const float* clips, const float* scales, int32_t bits,
                   const std::vector<PhiloxKey>& keys, uint32_t* words) {
  const std::vector<int64_t> offsets =
      Offsets(sources, [=](int64_t n) { return TernaryWords(n, bits); });
  const EncodeFunction encode =
      bits == kTrits ? GRACE_CHOOSE(EncodeGroups<true>) : GRACE_CHOOSE(EncodeGroups<false>);
  const auto draw = GRACE_CHOOSE(CoarseBatches);
  // Where both a group and one of random words begin.
  const int64_t both = std::lcm(kWordsOfGroup * DigitsOf(bits), int64_t{kBatch});
  const int64_t chunk = kChunk / both * both;
  LoopOver(sources).For(executor, CutAt{both}, [&](size_t i, int64_t begin, int64_t end) {
    alignas(64) float room[kChunk];
    alignas(64) uint32_t random[kChunk];
    const Accumulated source{sources[i].x, sources[i].residual, multiplier};
    const PhiloxSchedule schedule(keys[i]);
    const TernaryJob job{bits, clips[i], Inverse(scales[i], 1), 0.0f};
    for (int64_t at = begin; at < end; at += chunk) {
      const int64_t n = std::min(chunk, end - at);
      const float* x = source.At(at, n, room);
      draw(schedule, at / 8, CeilDiv(n, kCoarseBatch), random);
      const DenormalsAreZero scope;
      EncodeRange(encode, job, x, random, n, words + offsets[i] + at / DigitsOf(bits));
    }
  });
}

namespace {

using DecodeFunction = decltype(&generic::DecodeGroups<true, true, true>);

// Likewise; false where a result is not finite and the function looks at it.
bool DecodeRange(DecodeFunction decode, const TernaryJob& job, const uint32_t* words, int64_t n,
                 float* out) {
  const int64_t digits = DigitsOf(job.bits), group = kWordsOfGroup * digits;
  const int64_t whole = n / group, rest = n % group;
  bool finite = decode(job, words, whole, out);
  if (rest == 0) return finite;
  float last[kMostOfGroup] = {};
  uint32_t packed[kWordsOfGroup] = {};
  float* to = out + whole * group;
  std::copy_n(words + whole * kWordsOfGroup, CeilDiv(rest, digits), packed);
  ForTail(rest, digits, [&](int64_t element, int64_t place) { last[place] = to[element]; });
  decode(job, packed, 1, last);
  ForTail(rest, digits, [&](int64_t element, int64_t place) {
    to[element] = last[place];
    // Padding may overflow where nothing else does, so its flag does not count.
    finite &= (BitsOf(to[element]) & kInfinity) != kInfinity;
  });
  return finite;
}

template <bool kFirst, bool kLast>
DecodeFunction ChooseDecode(int32_t bits) {
  return bits == kTrits ? GRACE_CHOOSE(DecodeGroups<true, kFirst, kLast>)
                        : GRACE_CHOOSE(DecodeGroups<false, kFirst, kLast>);
}

TernaryJob DecodeJob(int32_t bits, float scale, float factor) {
  return {bits, 0.0f, 0.0f, Unit(scale, 1), factor, HalfOf(bits), BiasOf(bits)};
}

}  // namespace

bool TernaryDecode(const Executor& executor, const TernaryRows& rows,
                   const std::vector<DecodeOutput>& targets, int32_t bits, float factor) {
  const std::vector<int64_t> offsets =
      Offsets(targets, [=](int64_t n) { return TernaryWords(n, bits); });
  const DecodeFunction first = ChooseDecode<true, false>(bits);
  const DecodeFunction next = ChooseDecode<false, false>(bits);
  const DecodeFunction only = ChooseDecode<true, true>(bits);
  const DecodeFunction last = ChooseDecode<false, true>(bits);
  const int64_t digits = DigitsOf(bits), group = kWordsOfGroup * digits;
  // A stretch that stays in the first-level cache while all workers are added to it.
  const int64_t stretch = 4096 / group * group;
  std::atomic<bool> all_finite{true};
  LoopOver(targets).For(executor, CutAt{group}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    bool finite = true;
    for (int64_t at = begin; at < end; at += stretch) {
      const int64_t n = std::min(stretch, end - at);
      for (int64_t w = 0; w < rows.workers; ++w) {
        const bool ends = w + 1 == rows.workers;
        const DecodeFunction decode = w ? (ends ? last : next) : (ends ? only : first);
        const float scale = rows.scales[w * targets.size() + i];
        const TernaryJob job = DecodeJob(bits, scale, factor);
        const uint32_t* words = rows.words + w * offsets.back() + offsets[i] + at / digits;
        const bool good = DecodeRange(decode, job, words, n, targets[i].total + at);
        finite &= good || !ends;
      }
    }
    if (!finite) all_finite.store(false, std::memory_order_relaxed);
  });
  return all_finite;
}

}  // namespace grace
