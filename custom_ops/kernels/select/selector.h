// How the elements largest in magnitude are selected from each tensor of a list.
//
// A sample gives a key that somewhat more elements reach than are sent. One pass over memory
// computes acc, writes it to `residual_out` and collects the elements that reach the key; out of
// these, what is sent is chosen exactly. If the sample misled (too few reached the key, or far too
// many, as with ties), it is chosen out of all of acc. A tensor of one piece is done by one thread
// in its own cache.
//
// This class sends the largest elements, whichever their sign. A kernel that computes acc, limits
// what may be sent, or writes it in another way derives from it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/base/collect.h"
#include "kernels/base/compensate.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"

namespace grace {

class Selector {
 public:
  // `counts` gets how many of the ks[i] entries are used, unless it is null. With two sides the
  // keys of each sign have a sample of their own.
  Selector(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
           const Selection& selection, KeyRange range, int32_t* counts, int sides = 1);
  virtual ~Selector() = default;

  // Returns whether every acc is finite.
  bool Run();

 protected:
  // Of the positive side and of the negative one; the first of all, where there is one side.
  using Keys = std::array<uint32_t, 2>;

  // What is known of a tensor.
  struct Tensor {
    int64_t entries = 0;  // where its part of the selection begins
    Keys least{};         // the keys that elements are collected from; 0: none are
    int64_t limit = 0;    // how many of them are still worth it
    std::atomic<int64_t> total{0};
    std::array<std::atomic<int64_t>, 2> sizes{};  // with two sides: theirs, without denormals
    std::vector<Stretch> stretches;               // what was collected
  };

  // Writes acc of elements [begin, begin + count) of tensor i, or nothing where acc is null, and
  // returns whether it is finite. In the pass it also writes other state of these elements, such as
  // their momentum.
  virtual bool Compute(int64_t i, int64_t begin, int64_t count, bool in_pass, float* acc) const;
  // Fetches what Compute reads for an element.
  virtual void Prefetch(int64_t i, int64_t at) const;
  // Sees each acc once, in the pass.
  virtual void Note(int64_t, int64_t, int64_t, const float*) {}
  // The smallest key that is sent of tensor i, as these elements tell.
  virtual uint32_t Floor(const Executor&, int64_t, Stretches) { return range_.floor; }
  // Sends what is to be sent of these elements of tensor i: all of them, or those collected. Sends
  // nothing and returns false if those collected may lack some of it.
  virtual bool Choose(const Executor& executor, int64_t i, Stretches stretches, bool collected);

  // A tensor of several pieces.
  bool IsLarge(int64_t i) const { return sources_[i].n > kGrain; }
  // Whether a tensor is written past the caches; a small one is read again at once.
  bool Bypasses(int64_t i) const { return bypass_ && IsLarge(i); }
  // Whether `residual_out` holds 0 in place of what is collected of a tensor.
  bool Clears(int64_t i) const { return sides_ == 1 && IsLarge(i) && sources_[i].residual_out; }
  // Which of these elements are the k largest that may be sent.
  static Bound BoundOf(const Executor& executor, Stretches stretches, int64_t k, uint32_t least,
                       KeyRange range);

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const Selection selection_;
  const KeyRange range_;
  int32_t* const counts_;
  const int sides_;
  const ListLoop loop_;
  const bool bypass_;
  std::vector<Tensor> tensors_;

 private:
  bool IsPlain(int64_t i) const { return !sources_[i].residual && multiplier_ == 1.0f; }
  Keys Sampled(int64_t i) const;
  bool Encode(int64_t i, int64_t first, int64_t last);
  void Finish(const Executor& executor, int64_t i);
  void FinishRest();

  const Compensate compensate_ = ChooseCompensate();
  const Collect collect_ = ChooseCollect();
};

}  // namespace grace
