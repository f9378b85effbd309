#include <algorithm>
#include <cstring>

#include "kernels/base/collect.h"
#include "kernels/codes/size_class_chunks.h"

namespace grace {

// A window, and the rank of the next element that is asked for.
struct MovingWindow : ClassWindow {
  int64_t rank;
  // Those of the next elements, a bit for each, that it has.
  uint32_t Admit(uint32_t bits) {
    if (room == 0) return 0;
    if (room == wanted) return bits;
    const int64_t next = rank + __builtin_popcount(bits), has = Below(next) - Below(rank);
    uint32_t admitted = has ? bits : 0;
    if (has && has < next - rank) {
      admitted = 0;
      for (uint32_t left = bits; left; left &= left - 1, ++rank) {
        if (Has(rank)) admitted |= left & (~left + 1);
      }
    }
    rank = next;
    return admitted;
  }
};

// The numbers of a chunk. A kernel may write some more than there are.
struct ClassNumbers {
  uint32_t bytes[kChunk + kSlack], halves[kChunk + kSlack], wholes[kChunk + kSlack];
  ClassCounts found;
};

}  // namespace grace

#define GRACE_KERNEL "kernels/codes/encode_size_classes-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

class Encoder {
 public:
  Encoder(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
          int32_t bound, const std::vector<Room>& rooms, uint64_t step, const ClassParts& parts)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        bound_(bound),
        rooms_(rooms),
        step_(step),
        parts_(parts),
        chunks_(sources),
        exponents_(chunks_.count() * kExponents),
        starts_(chunks_.count()) {
    places_ = ClassPlaces(Lengths(sources), rooms);
  }

  bool Run() {
    Count();
    for (size_t t = 0; t < sources_.size(); ++t) Settle(t);
    return Emit();
  }

 private:
  // How often each exponent occurs in each chunk.
  void Count() {
    LoopOver(sources_).For(executor_, CutAt{kChunk}, [&](size_t t, int64_t first, int64_t last) {
      const Accumulated source{sources_[t].x, sources_[t].residual, multiplier_};
      alignas(64) float room[kChunk];
      for (int64_t begin = first; begin < last; begin += kChunk) {
        const int64_t count = std::min(kChunk, last - begin);
        const float* acc = source.At(begin, count, room);
        GRACE_CHOOSE(CountExponents)
        (acc, count, exponents_.data() + chunks_.At(t, begin) * kExponents);
      }
    });
  }

  // The edges of a tensor, its window, and where the numbers of its chunks begin.
  void Settle(size_t t) {
    int64_t above[kExponents + 1] = {};
    for (int64_t c = chunks_.first[t]; c < chunks_.first[t + 1]; ++c) {
      for (int e = 0; e < kExponents; ++e) above[e] += exponents_[c * kExponents + e];
    }
    for (int e = kExponents - 1; e >= 0; --e) above[e] += above[e + 1];
    const LeastExponents all(above, bound_, rooms_[t]);
    ClassChoice best;
    for (int32_t least = all.first; least <= all.last; ++least) {
      const ClassChoice own = ChooseUnit(above, least, all.first, rooms_[t]);
      if (own.error < best.error) best = own;
    }
    const ClassEdges edges(best.least, best.unit);
    edges_.push_back(edges);
    const int64_t wanted = best.least > 1 ? above[best.least - 1] - above[best.least] : 0;
    const auto start = wanted > 0 ? static_cast<int64_t>(step_ * static_cast<uint64_t>(best.more) %
                                                         static_cast<uint64_t>(wanted))
                                  : 0;
    windows_.push_back({wanted, best.more, start});
    ClassCounts at;
    for (int64_t c = chunks_.first[t]; c < chunks_.first[t + 1]; ++c) {
      starts_[c] = at;
      const ClassCounts own = Of(exponents_.data() + c * kExponents, edges);
      at = {at.bytes + own.bytes, at.halves + own.halves, at.wholes + own.wholes,
            at.below + own.below};
    }
    const ClassParts parts = PartsAt(parts_, places_[t]);
    const int64_t counts[] = {edges.unit, at.bytes + best.more, at.halves, at.wholes};
    std::copy(counts, counts + kClassCounts, parts.counts);
    const ClassRooms own(parts.counts, rooms_[t].words);
    auto* halves = reinterpret_cast<uint16_t*>(parts.numbers + own.wholes);
    auto* bytes = reinterpret_cast<uint8_t*>(parts.numbers + own.first_byte);
    if (own.halves % 2) halves[own.halves] = 0;
    std::fill(bytes + own.bytes, reinterpret_cast<uint8_t*>(parts.numbers + rooms_[t].words),
              uint8_t{0});
  }

  // The counts of the classes, from those of the exponents.
  static ClassCounts Of(const uint16_t* table, const ClassEdges& edges) {
    ClassCounts counts;
    if (edges.byte > 1) counts.below = table[edges.byte - 1];
    for (int e = edges.byte; e < edges.half; ++e) counts.bytes += table[e];
    for (int e = edges.half; e < edges.whole; ++e) counts.halves += table[e];
    for (int e = edges.whole; e < kExponents; ++e) counts.wholes += table[e];
    return counts;
  }

  bool Emit() {
    return EncodeChunks(
        executor_, sources_, multiplier_, CutAt{kChunk},
        [this](size_t t, int64_t begin, int64_t count, const float* acc, float* residual_out,
               bool) { EmitChunk(t, begin, CeilDiv(count, kGroup), acc, residual_out); });
  }

  void EmitChunk(size_t t, int64_t begin, int64_t groups, const float* acc,
                 float* residual_out) const {
    const ClassParts parts = PartsAt(parts_, places_[t]);
    const ClassCounts& at = starts_[chunks_.At(t, begin)];
    MovingWindow window{windows_[t], at.below};
    ClassNumbers own;
    const auto emit =
        residual_out ? GRACE_CHOOSE(EmitGroups<true>) : GRACE_CHOOSE(EmitGroups<false>);
    emit(edges_[t], &window, acc, groups, parts.tags + PackedWords(begin, 2), &own, residual_out);
    const ClassRooms all(parts.counts, rooms_[t].words);
    uint32_t* const wholes = parts.numbers + at.wholes;
    auto* halves = reinterpret_cast<uint16_t*>(parts.numbers + all.wholes) + at.halves;
    auto* bytes = reinterpret_cast<uint8_t*>(parts.numbers + all.first_byte) + at.bytes +
                  windows_[t].Below(at.below);
    for (int64_t i = 0; i < own.found.bytes; ++i) bytes[i] = static_cast<uint8_t>(own.bytes[i]);
    for (int64_t i = 0; i < own.found.halves; ++i) halves[i] = static_cast<uint16_t>(own.halves[i]);
    std::memcpy(wholes, own.wholes, own.found.wholes * sizeof(float));
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const int32_t bound_;
  const std::vector<Room>& rooms_;
  const uint64_t step_;
  const ClassParts& parts_;
  const ClassChunks<EncodeInput> chunks_;
  std::vector<uint16_t> exponents_;
  std::vector<ClassCounts> starts_;
  std::vector<ClassLengths> places_;
  std::vector<ClassEdges> edges_;
  std::vector<ClassWindow> windows_;
};

}  // namespace

bool EncodeClasses(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, int32_t bound, const std::vector<Room>& rooms, uint64_t step,
                   const ClassParts& parts) {
  return Encoder(executor, sources, multiplier, bound, rooms, step, parts).Run();
}

}  // namespace grace
