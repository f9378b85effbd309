#include "kernels/codes/byte_codes.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/accumulate.h"
#include "kernels/base/philox_blocks.h"
#include "kernels/quantize/block_factors.h"
#include "kernels/quantize/scales.h"

namespace grace {

// A tensor of n elements with the scales of all its blocks.
struct TreeJob {
  const float* scales;
  int64_t n, block;
};

// Of any scale, the huge ones too, four times the inverse is a normal number.
inline float TreeInverse(float scale, float) {
  return scale < kSmallestScale ? 0.0f : 4.0f / scale;
}
inline float TreeScale(float scale, float) { return scale < kSmallestScale ? 0.0f : scale; }

}  // namespace grace

#define GRACE_KERNEL "kernels/codes/byte_codes-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// encode(begin, groups, x, bytes, residual_out) of `count` elements from `begin` on, the last group
// perhaps incomplete.
template <class Encode>
void EncodeRange(const Encode& encode, int64_t begin, int64_t count, const float* x, uint8_t* bytes,
                 float* residual_out) {
  const int64_t groups = count / kGroup, rest = count % kGroup, whole = count - rest;
  encode(begin, groups, x, bytes, residual_out);
  if (rest == 0) return;
  float padded[kGroup] = {}, left[kGroup];
  uint8_t last[kGroup];
  std::copy(x + whole, x + count, padded);
  encode(begin + whole, 1, padded, last, residual_out ? left : nullptr);
  std::fill(last + rest, last + kGroup, uint8_t{0});
  std::copy(last, last + 4 * ByteWords(rest), bytes + whole);
  if (residual_out) std::copy(left, left + rest, residual_out + whole);
}

// visit(tensor, begin, count, acc, residual_out, bytes) for chunks of all sources, which are cut at
// `cut`; `bytes` is a buffer for the chunk's codes.
template <class Visit>
bool EncodeAll(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
               CutAt cut, uint32_t* words, const Visit& visit) {
  std::vector<int64_t> offsets{0};
  for (const EncodeInput& source : sources) offsets.push_back(offsets.back() + ByteWords(source.n));
  const ListLoop loop = LoopOver(sources);
  const Compensate compensate = ChooseCompensate();
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, cut, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    auto* own = reinterpret_cast<uint8_t*>(words + offsets[t]);
    const bool finite =
        EncodePiece(sources[t], multiplier, compensate, first, last, bypass,
                    [&](int64_t begin, int64_t count, const float* acc, float* residual_out) {
                      alignas(64) uint8_t bytes[kChunk];
                      visit(t, begin, count, acc, residual_out, bytes);
                      Store(bytes, 4 * ByteWords(count), bypass, own + begin);
                    });
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

// Where each target's words, and scales, begin in a row; the last is where the row ends.
template <class Size>
std::vector<int64_t> Places(const std::vector<DecodeOutput>& targets, const Size& size) {
  std::vector<int64_t> places{0};
  for (const DecodeOutput& target : targets) places.push_back(places.back() + size(target.n));
  return places;
}

// decode(tensor, worker, begin, groups, bytes, out) for chunks of all targets.
template <class Decode>
bool DecodeAll(const Executor& executor, const std::vector<DecodeOutput>& targets,
               const ByteRows& rows, const Decode& decode) {
  const std::vector<int64_t> places = Places(targets, ByteWords);
  const ListLoop loop = LoopOver(targets);
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{kGroup}, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    alignas(64) float out[kChunk];
    bool finite = true;
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      const int64_t groups = count / kGroup, rest = count % kGroup, whole = count - rest;
      for (int64_t w = 0; w < rows.workers; ++w) {
        const uint32_t* row = rows.words + w * places.back() + places[t];
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(row) + begin;
        finite &= decode(t, w, begin, groups, bytes, out);
        if (rest == 0) continue;
        uint8_t padded[kGroup] = {};
        std::copy(bytes + whole, bytes + count, padded);
        finite &= decode(t, w, begin + whole, 1, padded, out + whole);
      }
      Store(out, 4 * count, bypass, targets[t].total + begin);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

void Raise(std::atomic<uint32_t>& largest, uint32_t to) {
  uint32_t now = largest.load(std::memory_order_relaxed);
  while (now < to && !largest.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

// The elements of a block; 0 means the whole tensor. At least 1, because the number of blocks is
// the number of elements divided by it, also for an empty tensor.
int64_t BlockOf(int64_t block, int64_t n) { return block ? block : std::max<int64_t>(1, n); }

// The scales of blocks of any size, in a pass of their own.
void TreeScales(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
                int64_t block, const std::vector<int64_t>& places, float* scales) {
  std::vector<std::atomic<uint32_t>> largest(places.back());
  LoopOver(sources).For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    alignas(64) float room[kChunk];
    const EncodeInput& own = sources[t];
    const Accumulated acc{own.x, own.residual, multiplier};
    const int64_t size = BlockOf(block, own.n);
    uint32_t so_far = 0;
    for (int64_t at = first, n; at < last; at += n) {
      n = std::min({kChunk, size - at % size, last - at});
      so_far = std::max(so_far, MeasureOf(acc.At(at, n, room), n, Norm::kMax).largest);
      if (at + n < last && (at + n) % size) continue;
      Raise(largest[places[t] + at / size], so_far);
      so_far = 0;
    }
  });
  for (size_t i = 0; i < largest.size(); ++i) {
    scales[i] = ScaleOf({largest[i].load(), 0.0}, Norm::kMax);
  }
}

}  // namespace

bool EncodeTree(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
                int64_t block, uint32_t* words, float* scales) {
  std::vector<int64_t> places{0};
  for (const EncodeInput& own : sources) {
    places.push_back(places.back() + CeilDiv(own.n, BlockOf(block, own.n)));
  }
  // Blocks of which a chunk holds whole ones are measured while they are encoded.
  const bool at_once = block && kChunk % block == 0;
  if (!at_once) TreeScales(executor, sources, multiplier, block, places, scales);
  const auto plain = GRACE_CHOOSE(TreeGroups<false>), keeping = GRACE_CHOOSE(TreeGroups<true>);
  const CutAt cut{at_once ? std::max<int64_t>(block, kGroup) : kGroup};
  return EncodeAll(executor, sources, multiplier, cut, words,
                   [&](size_t t, int64_t begin, int64_t count, const float* acc,
                       float* residual_out, uint8_t* bytes) {
                     float* own = scales + places[t];
                     const TreeJob job{own, sources[t].n, BlockOf(block, sources[t].n)};
                     for (int64_t b = 0; at_once && b < count; b += block) {
                       const Measure measure =
                           MeasureOf(acc + b, std::min(block, count - b), Norm::kMax);
                       own[(begin + b) / block] = ScaleOf(measure, Norm::kMax);
                     }
                     const auto encode = [&](int64_t at, int64_t groups, const float* x,
                                             uint8_t* codes, float* left) {
                       (left ? keeping : plain)(job, at, groups, x, codes, left);
                     };
                     EncodeRange(encode, begin, count, acc, bytes, residual_out);
                   });
}

bool EncodePowers(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const std::vector<PhiloxKey>& keys, uint32_t* words) {
  const auto plain = GRACE_CHOOSE(PowerGroups<false>), keeping = GRACE_CHOOSE(PowerGroups<true>);
  return EncodeAll(executor, sources, multiplier, CutAt{kBatch}, words,
                   [&](size_t t, int64_t begin, int64_t count, const float* acc,
                       float* residual_out, uint8_t* bytes) {
                     const PhiloxSchedule schedule(keys[t]);
                     const auto encode = [&](int64_t at, int64_t groups, const float* x,
                                             uint8_t* codes, float* left) {
                       (left ? keeping : plain)(schedule, at, groups, x, codes, left);
                     };
                     EncodeRange(encode, begin, count, acc, bytes, residual_out);
                   });
}

bool DecodeTree(const Executor& executor, const std::vector<DecodeOutput>& targets,
                const ByteRows& rows, int64_t block, float factor) {
  const auto only = GRACE_CHOOSE(TreeValues<true, true>);
  const auto first = GRACE_CHOOSE(TreeValues<true, false>);
  const auto next = GRACE_CHOOSE(TreeValues<false, false>);
  const auto last = GRACE_CHOOSE(TreeValues<false, true>);
  const std::vector<int64_t> places =
      Places(targets, [&](int64_t n) { return CeilDiv(n, BlockOf(block, n)); });
  return DecodeAll(
      executor, targets, rows,
      [&](size_t t, int64_t w, int64_t begin, int64_t groups, const uint8_t* bytes, float* out) {
        const TreeJob job{rows.scales + w * places.back() + places[t], targets[t].n,
                          BlockOf(block, targets[t].n)};
        const bool ends = w + 1 == rows.workers;
        const auto decode = w ? (ends ? last : next) : (ends ? only : first);
        return decode(job, factor, begin, groups, bytes, out);
      });
}

bool DecodePowers(const Executor& executor, const std::vector<DecodeOutput>& targets,
                  const ByteRows& rows, float factor) {
  const auto only = GRACE_CHOOSE(PowerValues<true, true>);
  const auto first = GRACE_CHOOSE(PowerValues<true, false>);
  const auto next = GRACE_CHOOSE(PowerValues<false, false>);
  const auto last = GRACE_CHOOSE(PowerValues<false, true>);
  return DecodeAll(
      executor, targets, rows,
      [&](size_t, int64_t w, int64_t, int64_t groups, const uint8_t* bytes, float* out) {
        const bool ends = w + 1 == rows.workers;
        const auto decode = w ? (ends ? last : next) : (ends ? only : first);
        return decode(factor, groups, bytes, out);
      });
}

}  // namespace grace
