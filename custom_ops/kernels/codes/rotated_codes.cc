#include "kernels/codes/rotated_codes.h"

#include <algorithm>
#include <atomic>

#define GRACE_INLINE_MEMBER inline __attribute__((always_inline))

namespace grace {

// The tables of a list's code, and the signs of one of its tensors.
struct RotatedJob {
  RotatedCode code;
  // The centroid of each code of at most 5 bits, whose sign bit does not count.
  float near[16];
  // What every code stands for, and the magnitude's code of each number of steps.
  float values[2 * kMostCentroids];
  std::vector<uint8_t> codes_of_steps;
  // The sign bit of each element that is flipped.
  alignas(64) uint32_t signs[kMostRotated];

  explicit RotatedJob(const RotatedCode& given) : code(given), codes_of_steps(code.Last() + 1) {
    for (int i = 0; i < 16; ++i) near[i] = code.centroids[i & (code.count - 1)];
    for (int i = 0; i < 2 * code.count; ++i) {
      const float centroid = code.centroids[i & (code.count - 1)];
      values[i] = i < code.count ? centroid : -centroid;
    }
    for (int32_t steps = 0, k = 0; steps <= code.Last(); ++steps) {
      while (k + 1 < code.count && code.limits[k] <= steps) ++k;
      codes_of_steps[steps] = static_cast<uint8_t>(k);
    }
  }

  // The signs of the first n elements of each block.
  void Draw(const PhiloxKey& key, int64_t n) {
    uint32_t words[kMostRotated / kGroup];
    const int64_t count = CeilDiv(n, kGroup);
    RandomWords(Serial(), key, count, words);
    for (int64_t i = 0; i < count * kGroup; ++i) {
      signs[i] = (words[i / kGroup] >> (i % kGroup) & 1) << 31;
    }
  }
};

inline float RotatedScale(float scale) { return scale < kLeastRotatedScale ? 0.0f : scale; }

}  // namespace grace

#define GRACE_KERNEL "kernels/codes/transform-inl.h"
#include "kernels/base/each_isa.h"
#define GRACE_KERNEL "kernels/codes/rotated_codes-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using EncodeBlock = decltype(&generic::EncodeRotatedBlock<0, false>);
using DecodeBlock = decltype(&generic::DecodeRotatedBlock<0>);

template <bool kKeep>
EncodeBlock ChooseEncode(int32_t bits) {
  switch (bits) {
    case 1:
      return GRACE_CHOOSE(EncodeRotatedBlock<1, kKeep>);
    case 2:
      return GRACE_CHOOSE(EncodeRotatedBlock<2, kKeep>);
    case 3:
      return GRACE_CHOOSE(EncodeRotatedBlock<3, kKeep>);
    case 4:
      return GRACE_CHOOSE(EncodeRotatedBlock<4, kKeep>);
    case 5:
      return GRACE_CHOOSE(EncodeRotatedBlock<5, kKeep>);
    default:
      return GRACE_CHOOSE(EncodeRotatedBlock<0, kKeep>);
  }
}

DecodeBlock ChooseDecode(int32_t bits) {
  switch (bits) {
    case 1:
      return GRACE_CHOOSE(DecodeRotatedBlock<1>);
    case 2:
      return GRACE_CHOOSE(DecodeRotatedBlock<2>);
    case 3:
      return GRACE_CHOOSE(DecodeRotatedBlock<3>);
    case 4:
      return GRACE_CHOOSE(DecodeRotatedBlock<4>);
    case 5:
      return GRACE_CHOOSE(DecodeRotatedBlock<5>);
    default:
      return GRACE_CHOOSE(DecodeRotatedBlock<0>);
  }
}

}  // namespace

bool EncodeRotated(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<PhiloxKey>& keys, const RotatedCode& code,
                   uint32_t* words, float* scales) {
  const auto words_of = [&](int64_t n) { return code.WordsOf(n); };
  const auto scales_of = [&](int64_t n) { return code.ScalesOf(n); };
  const std::vector<int64_t> words_at = Offsets(sources, words_of);
  const std::vector<int64_t> scales_at = Offsets(sources, scales_of);
  const ListLoop loop = LoopOver(sources);
  const Compensate compensate = ChooseCompensate();
  const bool bypass = TooLargeToCache(loop.total());
  const EncodeBlock plain = ChooseEncode<false>(code.bits), keeping = ChooseEncode<true>(code.bits);
  const RotatedJob tables(code);
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{code.block}, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    RotatedJob job = tables;
    job.Draw(keys[t], std::min(code.block, code.SizeAt(sources[t].n)));
    alignas(64) float y[kMostRotated], padded[kMostRotated], left[kMostRotated];
    bool finite = true;
    const auto visit = [&](int64_t begin, int64_t count, const float* acc, float* writable) {
      uint32_t* own = words + words_at[t] + begin / kGroup * code.bits;
      for (int64_t b = 0; b < count; b += code.block) {
        const int64_t n = std::min(code.block, count - b), size = code.SizeAt(count - b);
        float* const scale = scales + scales_at[t] + (begin + b) / code.block;
        const float* x = acc + b;
        float* residual_out = writable ? writable + b : nullptr;
        if (n < size) {
          std::fill(std::copy(x, x + n, padded), padded + size, 0.0f);
          x = padded;
          residual_out = writable ? left : nullptr;
        }
        finite &= (writable ? keeping : plain)(job, x, size, y, own, scale, residual_out);
        if (writable && n < size) std::copy(left, left + n, writable + b);
        own += size / kGroup * code.bits;
      }
    };
    EncodePiece(sources[t], multiplier, compensate, first, last, bypass, visit);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

bool DecodeRotated(const Executor& executor, const std::vector<DecodeOutput>& targets,
                   const RotatedRows& rows, const std::vector<PhiloxKey>& keys,
                   const RotatedCode& code, float factor) {
  const auto words_of = [&](int64_t n) { return code.WordsOf(n); };
  const auto scales_of = [&](int64_t n) { return code.ScalesOf(n); };
  const std::vector<int64_t> words_at = Offsets(targets, words_of);
  const std::vector<int64_t> scales_at = Offsets(targets, scales_of);
  const ListLoop loop = LoopOver(targets);
  const bool bypass = TooLargeToCache(loop.total());
  const DecodeBlock decode = ChooseDecode(code.bits);
  const RotatedJob tables(code);
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{code.block}, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    RotatedJob job = tables;
    job.Draw(keys[t], std::min(code.block, code.SizeAt(targets[t].n)));
    alignas(64) float y[kMostRotated], out[kMostRotated];
    bool finite = true;
    for (int64_t at = first; at < last; at += code.block) {
      const int64_t n = std::min(code.block, last - at), size = code.SizeAt(last - at);
      finite &= decode(job, rows.words + words_at[t] + at / kGroup * code.bits, words_at.back(),
                       rows.scales + scales_at[t] + at / code.block, scales_at.back(), rows.workers,
                       size, n, factor, y, out);
      Store(out, 4 * n, bypass, targets[t].total + at);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

}  // namespace grace
