#include <algorithm>
#include <cstring>

#include "kernels/base/collect.h"
#include "kernels/codes/size_class_chunks.h"

namespace grace {

// The numbers of a chunk. A kernel may read some more than there are.
struct ClassValues {
  alignas(64) float bytes[kChunk + kSlack], halves[kChunk + kSlack], wholes[kChunk + kSlack];
};

}  // namespace grace

#define GRACE_KERNEL "kernels/codes/decode_size_classes-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

std::vector<ClassLengths> ClassPlaces(const std::vector<int64_t>& sizes,
                                      const std::vector<Room>& rooms) {
  std::vector<ClassLengths> places(1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    places.push_back(places.back() + ClassLengths(sizes[i], rooms[i]));
  }
  return places;
}

namespace {

class Decoder {
 public:
  Decoder(const Executor& executor, const std::vector<DecodeOutput>& targets,
          const std::vector<Room>& rooms, const ClassParts& parts, int64_t workers, float factor)
      : executor_(executor),
        targets_(targets),
        rooms_(rooms),
        parts_(parts),
        workers_(workers),
        factor_(factor),
        chunks_(targets),
        starts_(workers * chunks_.count()) {
    places_ = ClassPlaces(Lengths(targets), rooms);
  }

  bool Run() {
    Count();
    return DecodeChunks(executor_, targets_, CutAt{kChunk},
                        [this](size_t t, int64_t begin, int64_t count, float* out) {
                          ClassValues values;
                          bool finite = true;
                          for (int64_t w = 0; w < workers_; ++w) {
                            Numbers(t, w, begin, count, &values);
                            const bool ends = w + 1 == workers_;
                            const auto add = w ? (ends ? GRACE_CHOOSE(AddGroups<false, true>)
                                                       : GRACE_CHOOSE(AddGroups<false, false>))
                                               : (ends ? GRACE_CHOOSE(AddGroups<true, true>)
                                                       : GRACE_CHOOSE(AddGroups<true, false>));
                            finite &= add(Row(t, w).tags + PackedWords(begin, 2), count, values,
                                          factor_, out);
                          }
                          return finite;
                        });
  }

 private:
  // A worker's parts of a tensor.
  ClassParts Row(size_t t, int64_t w) const {
    const ClassLengths& row = places_.back();
    ClassLengths at = places_[t];
    at.tags += w * row.tags, at.numbers += w * row.numbers, at.counts += w * row.counts;
    return PartsAt(parts_, at);
  }

  // The number of elements of each class in a chunk of this many elements.
  static ClassCounts CountsOf(const uint32_t* tags, int64_t count) {
    ClassCounts found;
    for (int64_t at = 0; at < count; at += kGroup, tags += 2) {
      const uint32_t mask = GroupMask(count - at), low = tags[0] & mask, high = tags[1] & mask;
      found.bytes += __builtin_popcount(low & ~high);
      found.halves += __builtin_popcount(high & ~low);
      found.wholes += __builtin_popcount(low & high);
    }
    return found;
  }

  // Where the numbers of every chunk begin.
  void Count() {
    LoopOver(targets_).For(executor_, CutAt{kChunk}, [&](size_t t, int64_t first, int64_t last) {
      for (int64_t w = 0; w < workers_; ++w) {
        const uint32_t* tags = Row(t, w).tags;
        for (int64_t begin = first; begin < last; begin += kChunk) {
          starts_[w * chunks_.count() + chunks_.At(t, begin)] =
              CountsOf(tags + PackedWords(begin, 2), std::min(kChunk, last - begin));
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

  // The numbers of a chunk. Those that there is no room for are zeros.
  void Numbers(size_t t, int64_t w, int64_t begin, int64_t count, ClassValues* out) const {
    const ClassParts parts = Row(t, w);
    const ClassCounts& at = starts_[w * chunks_.count() + chunks_.At(t, begin)];
    const ClassCounts found = CountsOf(parts.tags + PackedWords(begin, 2), count);
    const ClassRooms all(parts.counts, rooms_[t].words);
    const float unit = ClassEdges::Power(static_cast<int32_t>(all.unit));
    // read(first, n, out) of those that there is room for.
    const auto take = [](int64_t first, int64_t wanted, int64_t room, float* out, auto read) {
      const int64_t n = std::min(wanted, std::max<int64_t>(0, room - first));
      if (n) read(first, n, out);
      std::fill(out + n, out + wanted, 0.0f);
    };
    take(at.bytes, found.bytes, all.bytes, out->bytes,
         [&](int64_t first, int64_t n, float* numbers) {
           const auto* bytes = reinterpret_cast<const uint8_t*>(parts.numbers + all.first_byte);
           GRACE_CHOOSE(ByteNumbers)(bytes + first, n, unit, numbers);
         });
    take(at.halves, found.halves, all.halves, out->halves,
         [&](int64_t first, int64_t n, float* numbers) {
           const auto* halves = reinterpret_cast<const uint16_t*>(parts.numbers + all.wholes);
           GRACE_CHOOSE(HalfNumbers)(halves + first, n, unit, numbers);
         });
    take(at.wholes, found.wholes, all.wholes, out->wholes,
         [&](int64_t first, int64_t n, float* numbers) {
           std::memcpy(numbers, parts.numbers + first, n * sizeof(float));
         });
  }

  const Executor& executor_;
  const std::vector<DecodeOutput>& targets_;
  const std::vector<Room>& rooms_;
  const ClassParts& parts_;
  const int64_t workers_;
  const float factor_;
  const ClassChunks<DecodeOutput> chunks_;
  std::vector<ClassCounts> starts_;
  std::vector<ClassLengths> places_;
};

}  // namespace

bool DecodeClasses(const Executor& executor, const std::vector<DecodeOutput>& targets,
                   const std::vector<Room>& rooms, const ClassParts& parts, int64_t workers,
                   float factor) {
  return Decoder(executor, targets, rooms, parts, workers, factor).Run();
}

}  // namespace grace
