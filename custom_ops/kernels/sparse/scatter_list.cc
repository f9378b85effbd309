#include "kernels/sparse/scatter_list.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "kernels/sparse/scatter_totals.h"

#define GRACE_KERNEL "kernels/sparse/scatter_list-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

Ascending ChooseAscending() { return GRACE_CHOOSE(Ascends); }

Scale ChooseScale() { return GRACE_CHOOSE(MultiplyBy); }

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
  const Ascending ascending_ = ChooseAscending();
  std::mutex mutex_;
  int64_t at_ = INT64_MAX;
  std::string first_;
};

// x, or zero of its sign where x is denormal. The processor would take it for that in a difference,
// but the compiler leaves out the subtraction of a zero.
float Normal(float x) {
  const uint32_t bits = BitsOf(x);
  return FloatOf((bits & kMagnitude) < kSmallestNormal ? bits & kSignBit : bits);
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
  int64_t Used(int64_t w, int64_t i) const { return UsedOf(entries_.counts, entries_.ks, w, i); }

 private:
  const Entries& entries_;
  const std::vector<int64_t> offsets_;
};

// Reads entries whose indices are not packed: all of them are one run.
class ArrayReader {
 public:
  ArrayReader(const Parts& parts, int64_t w, int64_t i, int64_t first) {
    const int32_t* own = parts.Indices(w, i);
    const int64_t used = parts.Used(w, i), from = std::lower_bound(own, own + used, first) - own;
    run_ = {own + from, parts.Values(w, i) + from, used - from};
  }
  Run Next() { return std::exchange(run_, {}); }

 private:
  Run run_;
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

std::string ScatterList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                        const Entries& entries, float factor, bool* finite) {
  const std::vector<int64_t> lengths = Lengths(targets);
  const std::string fault = IndexFault(executor, lengths, entries);
  if (!fault.empty()) return fault;
  const Totals totals(targets, factor);
  const Parts parts(entries);
  std::atomic<bool> all{true};
  LoopOver(targets).For(executor, kLines, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    std::vector<ArrayReader> readers;
    for (int64_t w = 0; w < entries.workers; ++w) readers.emplace_back(parts, w, i, begin);
    if (!totals.Write(readers, begin, end, targets[i].total)) all = false;
  });
  *finite = all;
  return {};
}

std::string RefineList(const Executor& executor, const std::vector<DecodeOutput>& residual_out,
                       const int32_t* indices, const float* values, const float* decoded,
                       const std::vector<int64_t>& ks) {
  const std::vector<int64_t> offsets = Offsets(ks);
  Faults faults;
  executor.For(residual_out.size(), 8, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* own = indices + offsets[i];
      if (!faults.Check(own, ks[i], i, residual_out[i].n)) return;
      for (int64_t j = 0; j < ks[i]; ++j) {
        const int64_t at = offsets[i] + j;
        residual_out[i].total[own[j]] = Normal(values[at]) - Flush(decoded[at]);
      }
    }
  });
  return faults.first();
}

}  // namespace grace
