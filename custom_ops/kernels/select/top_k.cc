// How: a sample gives a key that somewhat more than k elements reach. One pass over memory computes
// acc, writes it to `residual_out` and collects those that do, with zeros in their place; a radix
// select over them finds the k-th key exactly, and those below it go back to `residual_out`. If the
// sample misled (too few reached it, or far too many, as with ties), the radix select runs over all
// of acc. A tensor of one piece is done by one thread in its own cache.
#include "kernels/select/top_k.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/base/collect.h"
#include "kernels/base/dispatch.h"
#include "kernels/select/sample.h"
#include "kernels/select/select.h"

namespace grace {
namespace {

// The buffers of one thread. They hold the piece of a tensor that the thread works on.
struct Scratch {
  std::array<int32_t, kGrain + kSlack> indices;
  std::array<uint32_t, kGrain + kSlack> bits;
  std::array<float, kGrain> acc;

  static Scratch& OfThread() {
    static thread_local Scratch scratch;
    return scratch;
  }
};

// Which keys may be sent at all: from `floor`, which is at least 1 or is 0, up to `most`.
struct Range {
  uint32_t floor, most;
};

class Selector {
 public:
  Selector(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
           const Selection& selection, Range range, int32_t* counts)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        selection_(selection),
        range_(range),
        counts_(counts),
        loop_(LoopOver(sources)),
        bypass_(TooLargeToCache(loop_.total())),
        large_(sources.size()) {}

  bool Run() {
    Prepare();
    executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t i = begin; i < end; ++i) {
        if (IsLarge(i)) large_[i].least = std::max(range_.floor, Sampled(i));
      }
    });
    std::atomic<bool> finite{true};
    // A large tensor is cut into its stretches, a small one nowhere.
    const auto cut = [this](size_t i, int64_t element) {
      return IsLarge(i) ? CutAt{kGrain}(i, element) : sources_[i].n;
    };
    loop_.For(executor_, cut, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      if (!(IsLarge(i) ? CollectFrom(i, begin, end) : Small(i))) finite = false;
    });
    FinishLarge();
    return finite;
  }

 private:
  // What is known of a tensor of several pieces.
  struct Large {
    uint32_t least = 0;  // the key that elements are collected from; 0: none are
    int64_t limit = 0;   // how many of them are still worth it
    std::atomic<int64_t> total{0};
    std::vector<Stretch> stretches;
  };

  bool IsLarge(int64_t i) const { return sources_[i].n > kGrain; }

  void Prepare() {
    // No thread comes to an empty tensor.
    if (counts_) std::fill_n(counts_, sources_.size(), 0);
    int64_t offset = 0;
    for (size_t i = 0; i < sources_.size(); ++i) {
      offsets_.push_back(offset);
      offset += selection_.ks[i];
      large_[i].limit = 2 * selection_.ks[i] + sources_[i].n / 64;
      if (IsLarge(i)) large_[i].stretches.resize(CeilDiv(sources_[i].n, kGrain));
    }
  }

  Sent To(int64_t i, bool cleared) const {
    return {selection_.values + offsets_[i], selection_.indices + offsets_[i],
            sources_[i].residual_out, cleared};
  }

  uint32_t Sampled(int64_t i) const {
    const float *x = sources_[i].x, *residual = sources_[i].residual;
    return SampledKey(sources_[i].n, selection_.ks[i], {x, residual}, [&](int64_t at, float* acc) {
      Compute(x + at, residual ? residual + at : nullptr, kRun, acc);
    });
  }

  void Compute(const float* x, const float* residual, int64_t count, float* acc) const {
    if (!residual && multiplier_ == 1.0f) {
      std::copy_n(x, count, acc);
    } else {
      compensate_(x, residual, multiplier_, count, acc);
    }
  }

  bool CollectFrom(int64_t t, int64_t first, int64_t last) {
    Large& large = large_[t];
    Scratch& scratch = Scratch::OfThread();
    const bool collecting = large.least > 0 && large.total.load() <= large.limit;
    int64_t count = 0;
    const bool finite =
        EncodePiece(sources_[t], multiplier_, compensate_, first, last, bypass_,
                    [&](int64_t begin, int64_t size, const float* acc, float* writable) {
                      if (!collecting) return;
                      const int64_t more =
                          collect_(acc, begin, size, large.least, scratch.indices.data() + count,
                                   scratch.bits.data() + count);
                      for (int64_t i = count; writable && i < count + more; ++i) {
                        writable[scratch.indices[i] - begin] = 0.0f;
                      }
                      count += more;
                    });
    if (collecting) {
      large.stretches[first / kGrain].Own(scratch.indices.data(), scratch.bits.data(), count);
      large.total += count;
    } else {
      large.total = INT64_MAX / 2;
    }
    return finite;
  }

  // Everything for a tensor of one piece.
  bool Small(int64_t i) {
    const EncodeInput& source = sources_[i];
    const int64_t n = source.n, k = selection_.ks[i];
    Scratch& scratch = Scratch::OfThread();
    const bool plain = !source.residual && multiplier_ == 1.0f;
    float* room = source.residual_out ? source.residual_out : scratch.acc.data();
    const bool finite =
        compensate_(source.x, source.residual, multiplier_, n, plain ? nullptr : room);
    const float* acc = plain ? source.x : room;
    constexpr int64_t kWorthSampling = 512;
    const uint32_t least =
        std::max(range_.floor, n < kWorthSampling || k > n / 4 ? 0 : SampledOf(acc, n, k));
    if (least > 0) {
      const int64_t count = collect_(acc, 0, n, least, scratch.indices.data(), scratch.bits.data());
      if (count >= k || least == range_.floor) {
        Stretch stretch;
        stretch.count = count;
        stretch.indices = scratch.indices.data();
        stretch.bits = scratch.bits.data();
        Finish(Serial(), i, {&stretch, 1}, 0, false);
        return finite;
      }
    }
    const std::vector<Stretch> all = Whole(acc, n);
    Finish(Serial(), i, {all.data(), static_cast<int64_t>(all.size())}, 0, false);
    return finite;
  }

  static uint32_t SampledOf(const float* acc, int64_t n, int64_t k) {
    const int64_t samples = std::max<int64_t>(256, n / 64), step = (n / samples) | 1;
    std::vector<uint32_t> keys(samples);
    for (int64_t i = 0; i < samples; ++i) keys[i] = BitsOf(acc[i * step % n]) & kMagnitude;
    return RankedKey(keys, static_cast<double>(k) / static_cast<double>(n));
  }

  void FinishLarge() {
    std::vector<int64_t> alone, shared;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (IsLarge(i)) (sources_[i].n > loop_.total() / 4 ? alone : shared).push_back(i);
    }
    for (const int64_t i : alone) FinishOne(executor_, i);
    executor_.For(shared.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t j = begin; j < end; ++j) FinishOne(Serial(), shared[j]);
    });
  }

  void FinishOne(const Executor& executor, int64_t i) {
    const EncodeInput& source = sources_[i];
    Large& large = large_[i];
    const int64_t size = large.stretches.size();
    const bool enough = large.total >= selection_.ks[i] || large.least == range_.floor;
    if (large.least > 0 && enough && large.total <= large.limit) {
      Finish(executor, i, {large.stretches.data(), size}, large.least, true);
      return;
    }
    for (const Stretch& stretch : large.stretches) {
      for (int64_t j = 0; source.residual_out && j < stretch.count; ++j) {
        source.residual_out[stretch.Index(j)] = FloatOf(stretch.Bits(j));
      }
    }
    std::vector<float> room;
    const float* acc = source.residual_out ? source.residual_out : source.x;
    if (!source.residual_out && multiplier_ != 1.0f) {
      room.resize(source.n);
      executor.For(source.n, kGrain, [&](int64_t begin, int64_t end) {
        const DenormalsAreZero scope;
        Compute(source.x + begin, nullptr, end - begin, room.data() + begin);
      });
      acc = room.data();
    }
    const std::vector<Stretch> all = Whole(acc, source.n);
    Finish(executor, i, {all.data(), static_cast<int64_t>(all.size())}, 0, false);
  }

  // Sends what is to be sent of these elements of tensor i, the only ones that can be. Their keys
  // are at least `least`, and mostly near it if that is not 0.
  void Finish(const Executor& executor, int64_t i, Stretches stretches, uint32_t least,
              bool cleared) {
    const int64_t k = selection_.ks[i];
    Bound bound{range_.floor - 1, 0, range_.most};
    if (Total(stretches) > k || range_.floor == 0) {
      const Bound largest =
          least ? LargestFrom(stretches, least, k) : Largest(executor, stretches, k);
      if (largest.key >= range_.floor) bound = {largest.key, largest.ties, range_.most};
    }
    const Sent sent = To(i, cleared);
    const int64_t written = Send(executor, stretches, bound, sent);
    std::fill(sent.values + written, sent.values + k, 0.0f);
    std::fill(sent.indices + written, sent.indices + k, 0);
    if (counts_) counts_[i] = static_cast<int32_t>(written);
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const Selection& selection_;
  const Range range_;
  int32_t* const counts_;
  const ListLoop loop_;
  const bool bypass_;
  const Compensate compensate_ = ChooseCompensate();
  const Collect collect_ = ChooseCollect();
  std::vector<Large> large_;
  std::vector<int64_t> offsets_;
};

}  // namespace

bool TopKList(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              const Selection& selection) {
  return Selector(executor, sources, multiplier, selection, {0, kMagnitude}, nullptr).Run();
}

bool ThresholdList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, float threshold, const Selection& selection, int32_t* counts) {
  const Range range{FirstAbove(threshold), kInfinity};
  return Selector(executor, sources, multiplier, selection, range, counts).Run();
}

}  // namespace grace
