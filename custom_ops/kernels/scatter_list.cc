#include "scatter_list.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "compensate.h"

#define GRACE_KERNEL "each/scatter_list.h"
#include "each_isa.h"

namespace grace {

Scale ChooseScale() { return GRACE_CHOOSE(MultiplyBy); }

ListLoop LoopOver(const std::vector<Target>& targets) {
  std::vector<int64_t> lengths;
  for (const Target& target : targets) lengths.push_back(target.n);
  return ListLoop(lengths);
}

namespace {

// What is wrong with some indices into tensor i, which has n elements.
std::string Fault(const int32_t* indices, int64_t count, int64_t i, int64_t n) {
  for (int64_t j = 0; j < count; ++j) {
    if (indices[j] < 0 || indices[j] >= n) {
      return "Index " + std::to_string(indices[j]) + " is outside tensor " + std::to_string(i) +
             " of the list, which has " + std::to_string(n) + " elements.";
    }
  }
  return "A worker's indices into tensor " + std::to_string(i) +
         " of the list do not ascend strictly.";
}

// The fault of the first faulty tensor, whichever thread finds its own first.
class Faults {
 public:
  // Whether these indices into tensor i, which has n elements, are sound.
  bool Check(const int32_t* indices, int64_t count, int64_t i, int64_t n) {
    if (count == 0) return true;
    const bool inside = indices[0] >= 0 && indices[count - 1] < n;
    if (inside && ascending_(indices, count)) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (i < at_) {
      at_ = i;
      first_ = Fault(indices, count, i, n);
    }
    return false;
  }
  const std::string& first() const { return first_; }

 private:
  bool (*const ascending_)(const int32_t*, int64_t) = GRACE_CHOOSE(Ascending);
  std::mutex mutex_;
  int64_t at_ = INT64_MAX;
  std::string first_;
};

std::vector<int64_t> Offsets(const std::vector<int64_t>& ks) {
  std::vector<int64_t> offsets{0};
  for (const int64_t k : ks) offsets.push_back(offsets.back() + k);
  return offsets;
}

// Where the entries of each tensor and worker are, and how many of them count.
class Parts {
 public:
  explicit Parts(const Entries& entries) : entries_(entries), offsets_(Offsets(entries.ks)) {}

  const int32_t* Indices(int64_t w, int64_t i) const {
    return entries_.indices + w * offsets_.back() + offsets_[i];
  }
  const float* Values(int64_t w, int64_t i) const {
    return entries_.values + w * offsets_.back() + offsets_[i];
  }
  int64_t Used(int64_t w, int64_t i) const {
    if (!entries_.counts) return entries_.ks[i];
    const int64_t count = entries_.counts[w * static_cast<int64_t>(entries_.ks.size()) + i];
    return std::clamp<int64_t>(count, 0, entries_.ks[i]);
  }

 private:
  const Entries& entries_;
  const std::vector<int64_t> offsets_;
};

// Writes totals, a chunk at a time.
class Scatterer {
 public:
  Scatterer(const std::vector<Target>& targets, const Entries& entries, float factor)
      : targets_(targets), workers_(entries.workers), parts_(entries), factor_(factor) {
    bypass_ = TooLargeToCache(LoopOver(targets).total());
  }

  bool Write(int64_t i, int64_t first, int64_t last) const {
    std::vector<int64_t> at(workers_);  // the next entry of each worker
    for (int64_t w = 0; w < workers_; ++w) {
      const int32_t* own = parts_.Indices(w, i);
      at[w] = std::lower_bound(own, own + parts_.Used(w, i), first) - own;
    }
    alignas(64) float buffer[kChunk];
    bool finite = true;
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t end = std::min(last, begin + kChunk);
      std::fill_n(buffer, end - begin, 0.0f);
      for (int64_t w = 0; w < workers_; ++w) at[w] = Add(w, i, at[w], begin, end, buffer);
      finite &= scale_(factor_, end - begin, buffer);
      Store(buffer, 4 * (end - begin), bypass_, targets_[i].total + begin);
    }
    EndStores(bypass_);
    return finite;
  }

 private:
  // Adds worker w's entries from `j` on that are below `end`; returns the first that is not.
  int64_t Add(int64_t w, int64_t i, int64_t j, int64_t begin, int64_t end, float* buffer) const {
    const int32_t* own = parts_.Indices(w, i);
    const float* values = parts_.Values(w, i);
    for (const int64_t used = parts_.Used(w, i); j < used && own[j] < end; ++j) {
      float& total = buffer[own[j] - begin];
      total = Flush(total + Flush(values[j]));
    }
    return j;
  }

  const std::vector<Target>& targets_;
  const int64_t workers_;
  const Parts parts_;
  const float factor_;
  bool bypass_;
  const Scale scale_ = ChooseScale();
};

}  // namespace

std::string IndexFault(const Executor& executor, const std::vector<int64_t>& lengths,
                       const Entries& entries) {
  const Parts parts(entries);
  Faults faults;
  executor.For(lengths.size(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t w = 0; w < entries.workers; ++w) {
        faults.Check(parts.Indices(w, i), parts.Used(w, i), i, lengths[i]);
      }
    }
  });
  return faults.first();
}

std::string ScatterList(const Executor& executor, const std::vector<Target>& targets,
                        const Entries& entries, float factor, bool* finite) {
  const Scatterer scatterer(targets, entries, factor);
  std::vector<int64_t> lengths;
  for (const Target& target : targets) lengths.push_back(target.n);
  const std::string fault = IndexFault(executor, lengths, entries);
  if (!fault.empty()) return fault;
  std::atomic<bool> all{true};
  LoopOver(targets).For(executor, kLines, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    if (!scatterer.Write(i, begin, end)) all = false;
  });
  *finite = all;
  return {};
}

std::string RefineList(const Executor& executor, const std::vector<Target>& kept,
                       const int32_t* indices, const float* values, const float* decoded,
                       const std::vector<int64_t>& ks) {
  const std::vector<int64_t> offsets = Offsets(ks);
  Faults faults;
  executor.For(kept.size(), 8, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* own = indices + offsets[i];
      if (!faults.Check(own, ks[i], i, kept[i].n)) return;
      for (int64_t j = 0; j < ks[i]; ++j) {
        kept[i].total[own[j]] = values[offsets[i] + j] - Flush(decoded[offsets[i] + j]);
      }
    }
  });
  return faults.first();
}

}  // namespace grace
