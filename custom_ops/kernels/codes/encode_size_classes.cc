#include <algorithm>
#include <cstring>

#include "kernels/base/collect.h"
#include "kernels/codes/size_class_chunks.h"

namespace grace {

// A window, and the rank of the next byte that is asked for.
struct MovingWindow : ClassWindow {
  int64_t rank;
  // Those of the next bytes, a bit for each, that it has.
  uint32_t Admit(uint32_t bits) {
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

constexpr int kExponents = 256;

class Encoder {
 public:
  Encoder(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
          ErrorBound bound, const std::vector<Room>& rooms, uint64_t step, const ClassParts& parts)
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

  // The shift of a tensor, its window, and where the numbers of its chunks begin.
  void Settle(size_t t) {
    int64_t all[kExponents] = {};
    for (int64_t c = chunks_.first[t]; c < chunks_.first[t + 1]; ++c) {
      for (int e = 0; e < kExponents; ++e) all[e] += exponents_[c * kExponents + e];
    }
    int32_t shift = 0;
    ClassCounts found = Of(all, ClassEdges(bound_, shift));
    while (found.halves > rooms_[t].halves || found.wholes > rooms_[t].wholes) {
      found = Of(all, ClassEdges(bound_, ++shift));
    }
    const int64_t room = std::min(found.bytes, rooms_[t].bytes);
    const int64_t start = found.bytes > room
                              ? static_cast<int64_t>(step_ * static_cast<uint64_t>(room) %
                                                     static_cast<uint64_t>(found.bytes))
                              : 0;
    windows_.push_back({found.bytes, room, start});
    ClassCounts at;
    for (int64_t c = chunks_.first[t]; c < chunks_.first[t + 1]; ++c) {
      starts_[c] = at;
      const ClassCounts own = Of(exponents_.data() + c * kExponents, ClassEdges(bound_, shift));
      at = {at.bytes + own.bytes, at.halves + own.halves, at.wholes + own.wholes};
    }
    const ClassParts parts = PartsAt(parts_, places_[t]);
    const ClassLengths lengths(sources_[t].n, rooms_[t]);
    auto* bytes = reinterpret_cast<uint8_t*>(parts.bytes);
    auto* halves = reinterpret_cast<uint16_t*>(parts.halves);
    std::fill(bytes + room, bytes + 4 * lengths.bytes, uint8_t{0});
    std::fill(halves + found.halves, halves + 2 * lengths.halves, uint16_t{0});
    std::fill(parts.wholes + found.wholes, parts.wholes + lengths.wholes, 0.0f);
    const int64_t counts[] = {shift, found.bytes, found.halves, found.wholes};
    std::copy(counts, counts + kClassCounts, parts.counts);
  }

  // The counts of the classes, from those of the exponents.
  template <class Table>
  static ClassCounts Of(const Table* table, const ClassEdges& edges) {
    ClassCounts counts;
    for (int e = edges.byte; e < std::min(edges.half, kExponents); ++e) counts.bytes += table[e];
    for (int e = edges.half; e < std::min(edges.whole, kExponents); ++e) counts.halves += table[e];
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
    MovingWindow window{windows_[t], at.bytes};
    ClassNumbers own;
    const auto emit =
        residual_out ? GRACE_CHOOSE(EmitGroups<true>) : GRACE_CHOOSE(EmitGroups<false>);
    emit(ClassEdges(bound_, parts.counts[0]), &window, acc, groups,
         parts.tags + PackedWords(begin, 2), &own, residual_out);
    auto* bytes = reinterpret_cast<uint8_t*>(parts.bytes) + window.Below(at.bytes);
    auto* halves = reinterpret_cast<uint16_t*>(parts.halves) + at.halves;
    for (int64_t i = 0; i < own.found.bytes; ++i) bytes[i] = static_cast<uint8_t>(own.bytes[i]);
    for (int64_t i = 0; i < own.found.halves; ++i) halves[i] = static_cast<uint16_t>(own.halves[i]);
    std::memcpy(parts.wholes + at.wholes, own.wholes, own.found.wholes * sizeof(float));
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const ErrorBound bound_;
  const std::vector<Room>& rooms_;
  const uint64_t step_;
  const ClassParts& parts_;
  const ClassChunks<EncodeInput> chunks_;
  std::vector<uint16_t> exponents_;
  std::vector<ClassCounts> starts_;
  std::vector<ClassLengths> places_;
  std::vector<ClassWindow> windows_;
};

}  // namespace

bool EncodeClasses(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, ErrorBound bound, const std::vector<Room>& rooms,
                   uint64_t step, const ClassParts& parts) {
  return Encoder(executor, sources, multiplier, bound, rooms, step, parts).Run();
}

}  // namespace grace
