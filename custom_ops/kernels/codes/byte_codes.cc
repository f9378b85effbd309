#include "kernels/codes/byte_codes.h"

#include <algorithm>

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

// encode(tensor, begin, groups, acc, bytes, residual_out) writes the codes of the chunks of all
// sources, which are cut at `cut`, to a buffer.
template <class Encode>
bool EncodeAll(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
               CutAt cut, uint32_t* words, const Encode& encode) {
  const std::vector<int64_t> offsets = Offsets(sources, ByteWords);
  return EncodeChunks(executor, sources, multiplier, cut,
                      [&](size_t t, int64_t begin, int64_t count, const float* acc,
                          float* residual_out, bool bypass) {
                        alignas(64) uint8_t bytes[kChunk];
                        const int64_t groups = CeilDiv(count, kGroup);
                        encode(t, begin, groups, acc, bytes, residual_out);
                        std::fill(bytes + count, bytes + groups * kGroup, uint8_t{0});
                        auto* own = reinterpret_cast<uint8_t*>(words + offsets[t]);
                        Store(bytes, 4 * ByteWords(count), bypass, own + begin);
                      });
}

// add(tensor, worker, begin, groups, bytes, out) for chunks of all targets.
template <class Add>
bool DecodeAll(const Executor& executor, const std::vector<DecodeOutput>& targets,
               const ByteRows& rows, const Add& add) {
  const std::vector<int64_t> places = Offsets(targets, ByteWords);
  return DecodeChunks(
      executor, targets, CutAt{kGroup}, [&](size_t t, int64_t begin, int64_t count, float* out) {
        const int64_t groups = count / kGroup, rest = count % kGroup, whole = count - rest;
        bool finite = true;
        for (int64_t w = 0; w < rows.workers; ++w) {
          const uint32_t* row = rows.words + w * places.back() + places[t];
          const uint8_t* bytes = reinterpret_cast<const uint8_t*>(row) + begin;
          finite &= add(t, w, begin, groups, bytes, out);
          if (rest == 0) continue;
          uint8_t padded[kGroup] = {};
          std::copy(bytes + whole, bytes + count, padded);
          finite &= add(t, w, begin + whole, 1, padded, out + whole);
        }
        return finite;
      });
}

}  // namespace

bool EncodeTree(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
                int64_t block, uint32_t* words, float* scales) {
  const std::vector<int64_t> places =
      Offsets(sources, [&](int64_t n) { return CeilDiv(n, BlockOf(block, n)); });
  // Blocks of which a chunk holds whole ones are measured while they are encoded.
  const bool at_once = block && kChunk % block == 0;
  std::vector<Scaled> apart;
  for (size_t i = 0; i < (at_once ? 0 : sources.size()); ++i) {
    const EncodeInput& own = sources[i];
    apart.push_back(
        {{own.x, own.residual, multiplier}, own.n, BlockOf(block, own.n), scales + places[i]});
  }
  ScalesList(executor, apart, Norm::kMax);
  const auto plain = GRACE_CHOOSE(TreeGroups<false>), keeping = GRACE_CHOOSE(TreeGroups<true>);
  const CutAt cut{at_once ? std::max<int64_t>(block, kGroup) : kGroup};
  return EncodeAll(executor, sources, multiplier, cut, words,
                   [&](size_t t, int64_t begin, int64_t groups, const float* acc, uint8_t* bytes,
                       float* residual_out) {
                     float* own = scales + places[t];
                     const int64_t n = sources[t].n, count = std::min(groups * kGroup, n - begin);
                     for (int64_t b = 0; at_once && b < count; b += block) {
                       const Measure measure =
                           MeasureOf(acc + b, std::min(block, count - b), Norm::kMax);
                       own[(begin + b) / block] = ScaleOf(measure, Norm::kMax);
                     }
                     (residual_out ? keeping : plain)({own, n, BlockOf(block, n)}, begin, groups,
                                                      acc, bytes, residual_out);
                   });
}

bool EncodePowers(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const std::vector<PhiloxKey>& keys, uint32_t* words) {
  const auto plain = GRACE_CHOOSE(PowerGroups<false>), keeping = GRACE_CHOOSE(PowerGroups<true>);
  return EncodeAll(executor, sources, multiplier, CutAt{kCoarseBatch}, words,
                   [&](size_t t, int64_t begin, int64_t groups, const float* acc, uint8_t* bytes,
                       float* residual_out) {
                     (residual_out ? keeping : plain)(PhiloxSchedule(keys[t]), begin, groups, acc,
                                                      bytes, residual_out);
                   });
}

bool DecodeTree(const Executor& executor, const std::vector<DecodeOutput>& targets,
                const ByteRows& rows, int64_t block, float factor) {
  const auto only = GRACE_CHOOSE(TreeValues<true, true>);
  const auto first = GRACE_CHOOSE(TreeValues<true, false>);
  const auto next = GRACE_CHOOSE(TreeValues<false, false>);
  const auto last = GRACE_CHOOSE(TreeValues<false, true>);
  const std::vector<int64_t> places =
      Offsets(targets, [&](int64_t n) { return CeilDiv(n, BlockOf(block, n)); });
  return DecodeAll(
      executor, targets, rows,
      [&](size_t t, int64_t w, int64_t begin, int64_t groups, const uint8_t* bytes, float* out) {
        const TreeJob job{rows.scales + w * places.back() + places[t], targets[t].n,
                          BlockOf(block, targets[t].n)};
        const bool ends = w + 1 == rows.workers;
        const auto add = w ? (ends ? last : next) : (ends ? only : first);
        return add(job, factor, begin, groups, bytes, out);
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
        const auto add = w ? (ends ? last : next) : (ends ? only : first);
        return add(factor, groups, bytes, out);
      });
}

}  // namespace grace
