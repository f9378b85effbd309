// Definitions that both the encoder and the decoder of classes use, those for GPUs too.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/codes/size_classes.h"

namespace grace {

// The least biased exponents of the classes at a shift.
struct ClassEdges {
  int32_t byte, half, whole;
  GRACE_BOTH ClassEdges(ErrorBound bound, int32_t shift)
      : byte(bound.LeastByte() + shift),
        half(bound.LeastHalf() + shift),
        whole(bound.LeastWhole() + shift) {}
  // What the lowest bits of a byte and of a half are worth, and how many of these make 1; of halves
  // anything where there are none.
  GRACE_BOTH static float Power(int32_t exponent) {
    return FloatOf(static_cast<uint32_t>(exponent) << 23);
  }
  GRACE_BOTH float ByteUnit() const { return Power(half - 7); }
  GRACE_BOTH float HalfUnit() const { return Power(whole < 269 ? whole - 15 : 254); }
  GRACE_BOTH float BytesIn() const { return Power(261 - half); }
  GRACE_BOTH float HalvesIn() const { return Power(whole < 268 ? 269 - whole : 1); }
};

// Which bytes are sent: of `wanted` ones, in a circle, the `room` ones from `start` on.
struct ClassWindow {
  int64_t wanted, room, start;
  GRACE_BOTH bool Has(int64_t rank) const {
    return (rank >= start ? rank - start : rank + wanted - start) < room;
  }
  // How many ranks below this one it has.
  GRACE_BOTH int64_t Below(int64_t rank) const {
    // Those from the circle's beginning on.
    const int64_t beyond = start + room - wanted, over = beyond > 0 ? beyond : 0;
    const int64_t from = rank > start ? rank - start : 0;
    return (rank < over ? rank : over) + (from < room - over ? from : room - over);
  }
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
