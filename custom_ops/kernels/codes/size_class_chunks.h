// Definitions that both the encoder and the decoder of classes use, those for GPUs too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/codes/size_classes.h"

namespace grace {

// Biased exponents of a float, and the largest that a unit may have: the largest number is then
// finite, and so are the units in one.
constexpr int32_t kExponents = 256;
constexpr int32_t kLargestUnit = 253;
// The units that are tried for a least exponent: from it on downwards.
constexpr int32_t kUnits = 16;

// The biased exponents from which on an element is a byte, a half or the float; and the unit's.
struct ClassEdges {
  int32_t byte, half, whole, unit;
  GRACE_BOTH ClassEdges(int32_t least, int32_t unit_)
      : byte(least),
        half(AtMost(unit_ + 7, least)),
        whole(AtMost(unit_ + 15, least)),
        unit(unit_) {}
  // What the lowest bit of a byte and of a half is worth, and how many of these make 1.
  GRACE_BOTH static float Power(int32_t exponent) {
    return FloatOf(static_cast<uint32_t>(exponent) << 23);
  }
  GRACE_BOTH float Unit() const { return Power(unit); }
  GRACE_BOTH float UnitsIn() const { return Power(254 - unit); }

 private:
  GRACE_BOTH static int32_t AtMost(int32_t exponent, int32_t least) {
    return exponent < least ? least : exponent < kExponents ? exponent : kExponents;
  }
};

// Least exponents that may be chosen: from below the origin to the one where nothing is sent.
struct LeastExponents {
  // `above[e]` says how many elements have at least the exponent e, up to kExponents.
  GRACE_BOTH LeastExponents(const int64_t* above, int32_t bound, const Room& room) {
    int32_t origin = 1, top = kExponents - 1;
    while (above[origin] > room.outliers) ++origin;
    while (top > 0 && above[top] == 0) --top;
    first = origin - bound > 1 ? origin - bound : 1;
    last = top + 1;
  }
  int32_t first, last;
};

// A choice of edges: how many elements of the exponent below the least one are sent, and the error
// that is expected, infinite where the numbers do not fit. Comparisons are exact, since errors are
// integers below 2^53 times a power of four.
struct ClassChoice {
  double error = HUGE_VAL;
  int32_t least = kExponents, unit = kLargestUnit;
  int64_t more = 0;
};

// The best choice for a least exponent.
GRACE_BOTH inline ClassChoice ChooseUnit(const int64_t* above, int32_t least, int32_t lowest,
                                         const Room& room) {
  // The error is in units of 4^(least - 127) / (3 * 2^20): 7 / 3 of the square of its power of two
  // for an element that is not sent, a third of the square of the unit for one that is cut off.
  constexpr int kScale = 20, kShown = 25;
  int64_t lost = 0;
  for (int32_t i = 1; i <= kShown && i < least; ++i) {
    lost += (above[least - i] - above[least - i + 1]) << kScale >> (2 * i);
  }
  const uint64_t power = static_cast<uint64_t>(1023 + 2 * (least - 127)) << 52;
  double scale;
  std::memcpy(&scale, &power, sizeof scale);
  ClassChoice best;
  for (int32_t i = 0; i < kUnits; ++i) {
    const ClassEdges edges(least, least - i);
    if (edges.unit < 1 || edges.unit > kLargestUnit) continue;
    const int64_t wholes = above[edges.whole], halves = above[edges.half] - wholes;
    const int64_t bytes = above[least] - halves - wholes;
    const int64_t left = 4 * (room.words - wholes - (halves + 1) / 2) - bytes;
    if (left < 0) continue;
    int64_t more = 0;
    if (i >= 1 && i <= 7 && least > lowest) {
      const int64_t below = above[least - 1] - above[least];
      more = left < below ? left : below;
    }
    const int64_t cut = (bytes + more + halves) << kScale >> (2 * i);
    const double error = static_cast<double>(7 * (lost - (more << (kScale - 2))) + cut) * scale;
    if (error < best.error) best = {error, least, edges.unit, more};
  }
  return best;
}

// Which elements below the least exponent are sent: of `wanted` ones, in a circle, the `room` ones
// from `start` on.
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
  return {parts.tags + at.tags, parts.numbers + at.numbers, parts.counts + at.counts};
}

// How many elements of a stretch are in each class but nothing, or where its numbers begin. `below`
// are those of the exponent below the least one.
struct ClassCounts {
  int64_t bytes = 0, halves = 0, wholes = 0, below = 0;
};

// A tensor's unit and how many numbers of each class it has, as any bits tell; and where in its
// words they begin.
struct ClassRooms {
  GRACE_BOTH ClassRooms(const int32_t* counts, int64_t words)
      : unit(Within(counts[0], 1, kLargestUnit)),
        wholes(Within(counts[3], 0, words)),
        halves(Within(counts[2], 0, 2 * (words - wholes))),
        first_byte(wholes + (halves + 1) / 2),
        bytes(Within(counts[1], 0, 4 * (words - first_byte))) {}
  GRACE_BOTH static int64_t Within(int64_t count, int64_t least, int64_t most) {
    return count < least ? least : count < most ? count : most;
  }
  int64_t unit, wholes, halves, first_byte, bytes;
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
