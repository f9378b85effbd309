// Definitions that both the encoder and the decoder of classes use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/codes/classes.h"

namespace grace {

// The least biased exponents of the classes at a shift.
struct ClassEdges {
  int32_t byte, half, whole;
  ClassEdges(ErrorBound bound, int32_t shift)
      : byte(bound.LeastByte() + shift),
        half(bound.LeastHalf() + shift),
        whole(bound.LeastWhole() + shift) {}
  // What the lowest bits of a byte and of a half are worth, and how many of these make 1; of halves
  // anything where there are none.
  float ByteUnit() const { return FloatOf(static_cast<uint32_t>(half - 7) << 23); }
  float HalfUnit() const { return FloatOf(static_cast<uint32_t>(std::min(whole - 15, 254)) << 23); }
  float BytesIn() const { return FloatOf(static_cast<uint32_t>(261 - half) << 23); }
  float HalvesIn() const { return FloatOf(static_cast<uint32_t>(std::max(269 - whole, 1)) << 23); }
};

// The parts of a tensor, whose places in those of the list are `at`.
inline ClassParts PartsAt(const ClassParts& parts, const ClassLengths& at) {
  return {parts.tags + at.tags, parts.bytes + at.bytes, parts.halves + at.halves,
          parts.wholes + at.wholes, parts.counts + at.counts};
}

// How many elements of a stretch are in each class but nothing, or where its numbers begin.
struct ClassCounts {
  int64_t bytes = 0, halves = 0, wholes = 0;
};

// The elements of a tensor in chunks, and where their numbers are.
template <class Tensor>
struct ClassChunks {
  explicit ClassChunks(const std::vector<Tensor>& list) {
    for (const Tensor& own : list) first.push_back(first.back() + CeilDiv(own.n, kChunk));
  }
  // The number of the chunk of tensor t at element `begin`.
  int64_t At(size_t t, int64_t begin) const { return first[t] + begin / kChunk; }
  int64_t count() const { return first.back(); }
  std::vector<int64_t> first{0};
};

}  // namespace grace
