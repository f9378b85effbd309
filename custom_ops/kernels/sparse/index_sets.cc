#include "kernels/sparse/index_sets.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/base/collect.h"
#include "kernels/base/words.h"
#include "kernels/sparse/scatter_totals.h"

namespace grace {

// Words of a bitmap that are read at a time.
constexpr int64_t kWordsAtOnce = 16;

}  // namespace grace

#define GRACE_KERNEL "kernels/sparse/index_sets-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

namespace {

// Entries a thread takes at a time. They take a fraction of a millisecond; where the threads are
// more than the processors, waiting for one that sleeps costs several.
constexpr int64_t kEntries = 1 << 18;

int64_t BitmapWords(const IndexLayout& layout) { return CeilDiv(layout.upper_bits, 32); }

// Writes the sets of a list.
class Packer {
 public:
  Packer(const IndexLayouts& layouts, const int32_t* indices, const int32_t* counts,
         uint32_t* words)
      : layouts_(layouts), indices_(indices), counts_(counts), words_(words) {}

  // Writes the words that entries [begin, end) of tensor i are to write. `begin` is a multiple of
  // 32, so that low bits take whole words. Returns whether the indices are sound.
  bool Write(int64_t i, int64_t begin, int64_t end) const {
    const IndexLayout& layout = layouts_.each[i];
    const int32_t* indices = indices_ + layouts_.entries[i];
    uint32_t* low = words_ + layouts_.words[i];
    const int64_t used = UsedOf(counts_, layouts_.ks, 0, i);
    const int64_t from = std::min(begin, used), until = std::min(end, used);
    if (!WriteBitmap(layout, indices, {from, until, used, end == layout.k}, low)) return false;
    if (layout.plain) return true;
    const int64_t taken = CeilDiv((until - from) * layout.low, 32);
    uint32_t* stop = low + (end == layout.k ? layout.low_words : layout.low * (end / 32));
    low += layout.low * (begin / 32);
    pack_low_(indices + from, until - from, layout.low, low);
    std::fill(low + taken, stop, 0);
    return true;
  }

 private:
  // The entries [from, until) of the `used` entries of a tensor. `ends` tells whether the bitmap
  // ends with them.
  struct Part {
    int64_t from, until, used;
    bool ends;
  };

  bool WriteBitmap(const IndexLayout& layout, const int32_t* indices, Part part,
                   uint32_t* words) const {
    // Of a word that two parts share, the first writes it all. The other entries of the words at
    // both ends are looked at.
    const int64_t first = std::max<int64_t>(0, part.from - 1);
    const int64_t last = std::min(part.used, part.until + 32);
    if (first < last) {
      const bool inside = indices[first] >= 0 && indices[last - 1] < layout.n;
      if (!inside || !ascending_(indices + first, last - first)) return false;
    }
    const uint32_t step = layout.plain ? 0 : 1;
    const auto word = [&](int64_t i) { return ((indices[i] >> layout.low) + step * i) >> 5; };
    const auto after = [&](int64_t i) { return i > 0 ? word(i - 1) + 1 : 0; };
    const int64_t begin = after(part.from);
    const int64_t end = part.ends ? BitmapWords(layout) : after(part.until);
    int64_t own = part.from, other = part.until;
    while (own < last && word(own) < begin) ++own;
    while (other < last && word(other) < end) ++other;
    uint32_t* bitmap = words + layout.low_words;
    std::fill(bitmap + begin, bitmap + end, 0);
    set_bits_(indices, own, other, layout.low, step, bitmap);
    return true;
  }

  const IndexLayouts& layouts_;
  const int32_t* const indices_;
  const int32_t* const counts_;
  uint32_t* const words_;
  const Ascending ascending_ = ChooseAscending();
  void (*const set_bits_)(const int32_t*, int64_t, int64_t, int, uint32_t,
                          uint32_t*) = GRACE_CHOOSE(SetBits);
  void (*const pack_low_)(const int32_t*, int64_t, int, uint32_t*) = GRACE_CHOOSE(PackLow);
};

// The sets of several workers: where their words are, and how many bits are set before each
// kWordsAtOnce words of a bitmap.
class Sets {
 public:
  Sets(const Executor& executor, const IndexLayouts& layouts, const uint32_t* words,
       int64_t workers)
      : layouts_(layouts), words_(words), starts_(1, 0) {
    const int64_t tensors = layouts.each.size();
    for (int64_t i = 0; i < tensors; ++i) starts_.push_back(starts_.back() + Blocks(i));
    before_.resize(workers * starts_.back());
    const auto count_before = GRACE_CHOOSE(CountBefore);
    // A million words are counted in a fraction of a millisecond.
    executor.For(workers, 1 + (1 << 20) / std::max<int64_t>(1, layouts.words.back()),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t p = begin * tensors; p < end * tensors; ++p) {
                     const int64_t w = p / tensors, i = p % tensors;
                     count_before(Words(w, i) + layouts.each[i].low_words, Blocks(i),
                                  before_.data() + w * starts_.back() + starts_[i]);
                   }
                 });
  }

  const IndexLayout& Layout(int64_t i) const { return layouts_.each[i]; }
  const uint32_t* Words(int64_t w, int64_t i) const {
    return words_ + w * layouts_.words.back() + layouts_.words[i];
  }
  int64_t Blocks(int64_t i) const { return CeilDiv(BitmapWords(layouts_.each[i]), kWordsAtOnce); }
  const int32_t* Before(int64_t w, int64_t i) const {
    return before_.data() + w * starts_.back() + starts_[i];
  }

 private:
  const IndexLayouts& layouts_;
  const uint32_t* const words_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> before_;
};

using Read = int64_t (*)(const IndexLayout&, const uint32_t*, int64_t, int64_t, int64_t, int32_t*);

// Room for the entries of kWordsAtOnce words.
constexpr int64_t kRoom = 32 * kWordsAtOnce + kSlack;

// Reads those entries of a set that count, from the first at or above an element on.
class SetReader {
 public:
  // Of worker w's part of tensor i, with its values, of which the first `used` count.
  SetReader(const Sets& sets, int64_t w, int64_t i, const float* values, int64_t used,
            int64_t element)
      : layout_(sets.Layout(i)),
        words_(sets.Words(w, i)),
        values_(values),
        used_(used),
        element_(element) {
    Seek(sets.Before(w, i), sets.Blocks(i));
  }

  // Returns the next entries: none at the end of the set, and none after an unsound entry.
  Run Next() {
    const int64_t size = BitmapWords(layout_);
    int32_t* entries = room_.data() + 1;
    while (rank_ < used_ && sound_) {
      const int64_t end = std::min(size, word_ + kWordsAtOnce);
      const int64_t count =
          std::min(used_ - rank_, read_(layout_, words_, word_, end, rank_, entries));
      const float* values = values_ + rank_;
      word_ = end;
      rank_ += count;
      room_[0] = last_;
      // Entries that are missing or outside are n.
      sound_ = ascending_(room_.data(), count + 1) && entries[count - 1] < layout_.n &&
               (word_ < size || rank_ == used_);
      if (!sound_) break;
      last_ = entries[count - 1];
      const int64_t from = std::lower_bound(entries, entries + count, element_) - entries;
      if (from < count) return {entries + from, values + from, count - from};
    }
    return {};
  }

  bool sound() const { return sound_; }

 private:
  // Finds the word to begin with: that of the element's bit in a plain bitmap, else the last one
  // before which there are fewer zeros than the element's upper bits say. What they count are the
  // zeros before its bit.
  void Seek(const int32_t* before, int64_t blocks) {
    const int64_t wanted = element_ >> layout_.low;
    const auto starts = [&](int64_t word, int64_t rank) {
      return layout_.plain ? 32 * word <= wanted : 32 * word - rank < wanted;
    };
    int64_t block = 0, beyond = blocks;
    while (beyond - block > 1) {
      const int64_t middle = (block + beyond) / 2;
      (starts(middle * kWordsAtOnce, before[middle]) ? block : beyond) = middle;
    }
    word_ = block * kWordsAtOnce;
    rank_ = before[block];
    const uint32_t* bitmap = words_ + layout_.low_words;
    for (const int64_t last = BitmapWords(layout_) - 1; word_ < last; ++word_) {
      const int64_t rank = rank_ + __builtin_popcount(bitmap[word_]);
      if (!starts(word_ + 1, rank)) return;
      rank_ = rank;
    }
  }

  const IndexLayout& layout_;
  const uint32_t* const words_;
  const float* const values_;
  const int64_t used_, element_;
  const Read read_ = GRACE_CHOOSE(ReadEntries);
  const Ascending ascending_ = ChooseAscending();
  int64_t word_ = 0, rank_ = 0;
  int32_t last_ = -1;
  bool sound_ = true;
  std::array<int32_t, 1 + kRoom> room_;
};

}  // namespace

std::string PackIndexList(const Executor& executor, const IndexLayouts& layouts,
                          const int32_t* indices, const int32_t* counts, uint32_t* words) {
  const Packer packer(layouts, indices, counts, words);
  std::atomic<bool> sound{true};
  const auto write = [&](size_t i, int64_t begin, int64_t end) {
    if (!packer.Write(i, begin, end)) sound = false;
  };
  ListLoop(layouts.ks).For(executor, CutAt{32}, write, kEntries);
  if (sound) return {};
  return IndexFault(executor, layouts.lengths, {nullptr, indices, counts, 1, layouts.ks});
}

void UnpackIndexList(const Executor& executor, const IndexLayouts& layouts, const uint32_t* words,
                     int64_t workers, int32_t* indices) {
  const auto read = GRACE_CHOOSE(ReadEntries);
  const Sets sets(executor, layouts, words, workers);
  const int64_t tensors = layouts.each.size();
  std::vector<int64_t> blocks;
  for (int64_t p = 0; p < workers * tensors; ++p) blocks.push_back(sets.Blocks(p % tensors));
  const auto unpack = [&](size_t part, int64_t begin, int64_t end) {
    const int64_t w = part / tensors, i = part % tensors;
    const IndexLayout& layout = layouts.each[i];
    const int64_t size = BitmapWords(layout);
    int32_t* own = indices + w * layouts.entries.back() + layouts.entries[i];
    int64_t rank = std::min<int64_t>(sets.Before(w, i)[begin], layout.k);
    std::array<int32_t, kRoom> room;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kWordsAtOnce, last = std::min(size, first + kWordsAtOnce);
      const int64_t count = read(layout, sets.Words(w, i), first, last, rank, room.data());
      std::copy_n(room.data(), count, own + rank);
      rank += count;
    }
    if (end == sets.Blocks(i)) {
      std::fill(own + rank, own + layout.k, static_cast<int32_t>(layout.n));
    }
  };
  // A block has hardly ever more than half of its bits set.
  ListLoop(blocks).For(executor, CutAt{1}, unpack, kEntries / (16 * kWordsAtOnce));
}

std::string ScatterSetList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                           const IndexLayouts& layouts, const SetEntries& entries, float factor,
                           bool* finite) {
  const int64_t workers = entries.workers, size = layouts.entries.back();
  const Sets sets(executor, layouts, entries.words, workers);
  const Totals totals(targets, factor);
  std::atomic<bool> all_finite{true}, all_sound{true};
  LoopOver(targets).For(executor, kLines, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    std::vector<SetReader> readers;
    readers.reserve(workers);
    for (int64_t w = 0; w < workers; ++w) {
      const float* values = entries.values + w * size + layouts.entries[i];
      readers.emplace_back(sets, w, i, values, UsedOf(entries.counts, layouts.ks, w, i), begin);
    }
    if (!totals.Write(readers, begin, end, targets[i].total)) all_finite = false;
    for (const SetReader& reader : readers) {
      if (!reader.sound()) all_sound = false;
    }
  });
  *finite = all_finite;
  if (all_sound) return {};
  std::vector<int32_t> indices(workers * size);
  UnpackIndexList(executor, layouts, entries.words, workers, indices.data());
  return IndexFault(executor, layouts.lengths,
                    {entries.values, indices.data(), entries.counts, workers, layouts.ks});
}

}  // namespace grace
