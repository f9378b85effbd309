#include <atomic>
#include <cstring>

#include "class_chunks.h"

#define GRACE_KERNEL "each/decode_classes.h"
#include "each_isa.h"

namespace grace {

ClassLengths ClassLengths::operator+(const ClassLengths& other) const {
  ClassLengths sum = *this;
  sum.tags += other.tags, sum.bytes += other.bytes, sum.halves += other.halves;
  sum.wholes += other.wholes, sum.counts += other.counts;
  return sum;
}

std::vector<ClassLengths> ClassPlaces(const std::vector<int64_t>& sizes,
                                      const std::vector<Room>& rooms) {
  std::vector<ClassLengths> places(1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    places.push_back(places.back() + ClassLengths(sizes[i], rooms[i]));
  }
  return places;
}

void ExpandClasses(const ClassEdges& edges, const uint8_t* classes, const uint8_t* bytes,
            const uint16_t* halves, const float* wholes, int64_t count, float* out) {
  float of_bytes[kChunk + 1], of_halves[kChunk + 1];
  int64_t b = 0, h = 0, w = 0;
  GRACE_CHOOSE(ByteNumbers)(bytes, count, edges.ByteUnit(), of_bytes);
  GRACE_CHOOSE(HalfNumbers)(halves, count, edges.HalfUnit(), of_halves);
  of_bytes[count] = of_halves[count] = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const int own = classes[i];
    const float small = own == 1 ? of_bytes[b] : 0.0f, large = own == 2 ? of_halves[h] : wholes[w];
    out[i] = own >= 2 ? large : small;
    b += own == 1, h += own == 2, w += own == 3;
  }
}

namespace {

class Decoder {
 public:
  Decoder(const Executor& executor, const std::vector<Target>& targets, ErrorBound bound,
          const std::vector<Room>& rooms, const ClassParts& parts, int64_t workers, float factor)
      : executor_(executor), targets_(targets), bound_(bound), rooms_(rooms), parts_(parts),
        workers_(workers), factor_(factor), chunks_(targets),
        starts_(workers * chunks_.count()) {
    std::vector<int64_t> sizes;
    for (const Target& own : targets) sizes.push_back(own.n);
    places_ = ClassPlaces(sizes, rooms);
  }

  bool Run() {
    Count();
    const ListLoop loop = LoopOver(targets_);
    const bool bypass = TooLargeToCache(loop.total());
    std::atomic<bool> all{true};
    loop.For(executor_, CutAt{kChunk}, [&](size_t t, int64_t first, int64_t last) {
      const DenormalsAreZero scope;
      alignas(64) float values[kChunk], out[kChunk];
      bool finite = true;
      for (int64_t begin = first; begin < last; begin += kChunk) {
        const int64_t count = std::min(kChunk, last - begin), groups = CeilDiv(count, kGroup);
        for (int64_t w = 0; w < workers_; ++w) {
          Numbers(t, w, begin, count, values);
          std::fill(values + count, values + kGroup * groups, 0.0f);
          finite &= GRACE_CHOOSE(AddClasses)(values, groups, w == 0, w + 1 == workers_, factor_,
                                             out);
        }
        Store(out, 4 * count, bypass, targets_[t].total + begin);
      }
      EndStores(bypass);
      if (!finite) all.store(false, std::memory_order_relaxed);
    });
    return all;
  }

 private:
  // A worker's parts of a tensor.
  ClassParts Row(size_t t, int64_t w) const {
    const ClassLengths& row = places_.back();
    ClassLengths at = places_[t];
    at.tags += w * row.tags, at.bytes += w * row.bytes, at.halves += w * row.halves;
    at.wholes += w * row.wholes, at.counts += w * row.counts;
    return PartsAt(parts_, at);
  }

  // Where the numbers of every chunk begin.
  void Count() {
    LoopOver(targets_).For(executor_, CutAt{kChunk}, [&](size_t t, int64_t first, int64_t last) {
      for (int64_t w = 0; w < workers_; ++w) {
        const uint32_t* tags = Row(t, w).tags;
        for (int64_t begin = first; begin < last; begin += kChunk) {
          ClassCounts& own = starts_[w * chunks_.count() + chunks_.At(t, begin)];
          const int64_t end = std::min(last, begin + kChunk);
          for (int64_t g = begin / kGroup; g < CeilDiv(end, kGroup); ++g) {
            const uint32_t mask = GroupMask(end - kGroup * g);
            const uint32_t low = tags[2 * g] & mask, high = tags[2 * g + 1] & mask;
            own.bytes += __builtin_popcount(low & ~high);
            own.halves += __builtin_popcount(high & ~low);
            own.wholes += __builtin_popcount(low & high);
          }
        }
      }
    });
    for (int64_t w = 0; w < workers_; ++w) {
      for (size_t t = 0; t < targets_.size(); ++t) {
        ClassCounts at;
        for (int64_t c = chunks_.first[t]; c < chunks_.first[t + 1]; ++c) {
          ClassCounts& own = starts_[w * chunks_.count() + c];
          const ClassCounts found = own;
          own = at;
          at = {at.bytes + found.bytes, at.halves + found.halves, at.wholes + found.wholes};
        }
      }
    }
  }

  // The numbers of a chunk from place `at` on, as many as there is room for, then zeros.
  template <class T>
  static void Take(const T* from, int64_t at, int64_t room, int64_t count, T* out) {
    const int64_t some = std::min(count, std::max<int64_t>(0, room - at));
    if (some) std::memcpy(out, from + at, some * sizeof(T));
    std::fill(out + some, out + count + 1, T{0});
  }

  void Numbers(size_t t, int64_t w, int64_t begin, int64_t count, float* out) const {
    const ClassParts parts = Row(t, w);
    const ClassCounts& at = starts_[w * chunks_.count() + chunks_.At(t, begin)];
    uint8_t classes[kChunk], bytes[kChunk + 1];
    uint16_t halves[kChunk + 1];
    float wholes[kChunk + 1];
    GRACE_CHOOSE(UnpackClasses)
    (parts.tags + PackedWords(begin, 2), CeilDiv(count, kGroup), classes);
    Take(reinterpret_cast<const uint8_t*>(parts.bytes), at.bytes, rooms_[t].bytes, count, bytes);
    Take(reinterpret_cast<const uint16_t*>(parts.halves), at.halves, rooms_[t].halves, count,
         halves);
    Take(parts.wholes, at.wholes, rooms_[t].wholes, count, wholes);
    const int32_t shift = std::min(std::max(parts.counts[0], 0), bound_.LargestShift());
    ExpandClasses(ClassEdges(bound_, shift), classes, bytes, halves, wholes, count, out);
  }

  const Executor& executor_;
  const std::vector<Target>& targets_;
  const ErrorBound bound_;
  const std::vector<Room>& rooms_;
  const ClassParts& parts_;
  const int64_t workers_;
  const float factor_;
  const ClassChunks<Target> chunks_;
  std::vector<ClassCounts> starts_;
  std::vector<ClassLengths> places_;
};

}  // namespace

bool DecodeClasses(const Executor& executor, const std::vector<Target>& targets, ErrorBound bound,
                   const std::vector<Room>& rooms, const ClassParts& parts, int64_t workers,
                   float factor) {
  return Decoder(executor, targets, bound, rooms, parts, workers, factor).Run();
}

}  // namespace grace
