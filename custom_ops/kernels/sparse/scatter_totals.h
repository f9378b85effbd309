// Shared by the decoders of sparse vectors: they take one chunk of a tensor after another, add up
// the entries of all workers for it, and write it to memory once.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {

// Consecutive entries of what one worker sent of one tensor, in ascending order of their indices.
struct Run {
  const int32_t* indices = nullptr;
  const float* values = nullptr;
  int64_t count = 0;
};

class Totals {
 public:
  Totals(const std::vector<DecodeOutput>& targets, float factor)
      : factor_(factor), bypass_(TooLargeToCache(LoopOver(targets).total())) {}

  // Writes total[first, last) and returns whether all of it is finite. There is a reader for each
  // worker, whose calls Next() return run after run, from the first entry at or above `first` on,
  // and an empty one at the end.
  template <class Reader>
  bool Write(std::vector<Reader>& readers, int64_t first, int64_t last, float* total) const {
    std::vector<Run> runs;
    for (Reader& reader : readers) runs.push_back(reader.Next());
    alignas(64) float buffer[kChunk];
    bool finite = true;
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t end = std::min(last, begin + kChunk);
      std::fill_n(buffer, end - begin, 0.0f);
      for (size_t w = 0; w < readers.size(); ++w) {
        while (AddBelow(end, begin, &runs[w], buffer)) runs[w] = readers[w].Next();
      }
      finite &= scale_(factor_, end - begin, buffer);
      Store(buffer, 4 * (end - begin), bypass_, total + begin);
    }
    EndStores(bypass_);
    return finite;
  }

 private:
  // Adds the entries below `end` and takes them off the run; returns whether a run that had some
  // is used up.
  static bool AddBelow(int64_t end, int64_t begin, Run* run, float* buffer) {
    const Run own = *run;
    int64_t j = 0;
    for (; j < own.count && own.indices[j] < end; ++j) {
      float& total = buffer[own.indices[j] - begin];
      total = Flush(total + Flush(own.values[j]));
    }
    *run = {own.indices + j, own.values + j, own.count - j};
    return j > 0 && run->count == 0;
  }

  const float factor_;
  const bool bypass_;
  const Scale scale_ = ChooseScale();
};

}  // namespace grace
