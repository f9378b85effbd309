// One parallel loop over all elements of a list of tensors.
//
// The loop treats the tensors as laid end to end and cuts them into pieces of equal size. So
// threads get equal work for any lengths, and a list of many small tensors costs no more than one
// tensor of their size. A kernel says where its tensors may be cut: a cut between two of these
// places moves to the next one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

// A tensor of a list.
struct Floats {
  const float* data;
  int64_t size;
};

// A tensor that a list encoder reads.
struct EncodeInput {
  const float* x;
  const float* residual;  // null: nothing is added
  float* residual_out;    // x itself or apart from it; null: nothing is kept
  int64_t n;
};

// A tensor that a list decoder writes.
struct DecodeOutput {
  float* total;
  int64_t n;
};

// Tensors may be cut at multiples of this many elements, counted from the tensor's first.
struct CutAt {
  int64_t multiple;
  int64_t operator()(size_t, int64_t element) const {
    return CeilDiv(element, multiple) * multiple;
  }
};

// The lengths of the tensors of a list.
template <class Tensor>
std::vector<int64_t> Lengths(const std::vector<Tensor>& list) {
  std::vector<int64_t> lengths;
  for (const Tensor& tensor : list) lengths.push_back(tensor.n);
  return lengths;
}

// For parts of these sizes that lie one after another: where each begins, and last where all end.
inline std::vector<int64_t> Offsets(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets{0};
  for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

// Likewise, of parts of size(n) for a tensor of n elements.
template <class Tensor, class Size>
std::vector<int64_t> Offsets(const std::vector<Tensor>& list, const Size& size) {
  std::vector<int64_t> offsets{0};
  for (const Tensor& tensor : list) offsets.push_back(offsets.back() + size(tensor.n));
  return offsets;
}

class ListLoop {
 public:
  explicit ListLoop(const std::vector<int64_t>& sizes) : starts_(Offsets(sizes)) {}
  explicit ListLoop(const std::vector<Floats>& list) : starts_(1, 0) {
    for (const Floats& tensor : list) starts_.push_back(starts_.back() + tensor.size);
  }

  // The elements of all tensors.
  int64_t total() const { return starts_.back(); }

  // Calls body(tensor, begin, end) for ranges that together cover each tensor once. The calls come
  // in any order and may run at the same time. cut(tensor, element) returns the first place at or
  // after the element where the tensor may be cut. A place beyond the tensor's end means the end.
  // The body is not called for empty ranges. A thread takes `grain` elements at a time.
  template <class Cut, class Body>
  void For(const Executor& executor, const Cut& cut, const Body& body,
           int64_t grain = kGrain) const {
    executor.For(total(), grain, [&](int64_t begin, int64_t end) {
      const auto after = std::upper_bound(starts_.begin(), starts_.end(), begin);
      for (size_t i = after - starts_.begin() - 1; starts_[i] < end; ++i) {
        const int64_t from = Place(cut, i, begin), until = Place(cut, i, end);
        if (from < until) body(i, from, until);
        if (i + 2 == starts_.size()) return;
      }
    });
  }

 private:
  // Where tensor i is cut if the list is cut at `element`.
  template <class Cut>
  int64_t Place(const Cut& cut, size_t i, int64_t element) const {
    const int64_t size = starts_[i + 1] - starts_[i], own = element - starts_[i];
    if (own <= 0) return 0;
    return own >= size ? size : std::min<int64_t>(size, cut(i, own));
  }

  std::vector<int64_t> starts_;
};

template <class Tensor>
ListLoop LoopOver(const std::vector<Tensor>& list) {
  return ListLoop(Lengths(list));
}

}  // namespace grace
