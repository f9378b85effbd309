// How: a small first sample gives a key that enough elements are expected to reach. One pass over
// memory advances the momentum, writes it and acc, collects the elements that reach the key, and
// notes the sample that the threshold is defined by. What is sent is then found among those
// collected, or among all of acc where the first sample gave a key that was too high. What is sent
// is taken out of the tensors in place.
#include "kernels/select/sampled_k.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "kernels/base/collect.h"
#include "kernels/base/dispatch.h"
#include "kernels/select/sample.h"
#include "kernels/select/select.h"

namespace grace {
namespace {

// What is smaller is not worth a sample of our own.
constexpr int64_t kWorthSampling = 4096;

// The chunk that a thread works on, and what it collects of its piece.
struct Buffers {
  alignas(64) float acc[kChunk];
  alignas(64) float next[kChunk];
  int32_t indices[kGrain + kSlack];
  uint32_t bits[kGrain + kSlack];

  static Buffers& OfThread() {
    static thread_local Buffers buffers;
    return buffers;
  }
};

class SampledSelector {
 public:
  SampledSelector(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const Correction& correction,
                  const std::vector<Sampling>& samplings, const Selection& selection,
                  int32_t* counts)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        correction_(correction),
        samplings_(samplings),
        selection_(selection),
        counts_(counts),
        loop_(LoopOver(sources)),
        bypass_(TooLargeToCache(loop_.total())),
        works_(sources.size()),
        scales_(sources.size(), 1.0f) {}

  bool Run() {
    Prepare();
    if (Corrects() && correction_.limit >= 0) {
      scales_ = ClipScales(executor_, sources_, multiplier_, correction_.limit);
    }
    executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t i = begin; i < end; ++i) works_[i].least = Sampled(i);
    });
    std::atomic<bool> finite{true};
    loop_.For(executor_, CutAt{kGrain}, [&](size_t i, int64_t first, int64_t last) {
      const DenormalsAreZero scope;
      if (!Encode(i, first, last)) finite = false;
    });
    Finish();
    return finite;
  }

 private:
  struct Work {
    int64_t offset = 0;  // of the tensor's entries
    int64_t start = 0;
    std::vector<uint32_t> sample;  // keys
    uint32_t least = 0;            // the key that elements are collected from; 0: none are
    int64_t limit = 0;             // how many of them are still worth it
    std::atomic<int64_t> total{0};
    std::vector<Stretch> stretches;
  };

  bool Corrects() const { return !correction_.states.empty(); }

  void Prepare() {
    int64_t offset = 0;
    for (size_t i = 0; i < sources_.size(); ++i) {
      Work& work = works_[i];
      const Sampling& sampling = samplings_[i];
      work.offset = offset;
      offset += selection_.ks[i];
      work.limit = 2 * selection_.ks[i] + sources_[i].n / 64;
      work.stretches.resize(CeilDiv(sources_[i].n, kGrain));
      if (sampling.stride == 1) continue;
      work.sample.resize(sampling.size);
      uint32_t word;
      RandomWords(Serial(), sampling.key, 1, &word);
      work.start = static_cast<int64_t>(static_cast<uint64_t>(word) * sampling.stride >> 32);
    }
  }

  // acc, and with momentum its next state, of elements [begin, begin + count) of tensor i.
  bool Advanced(int64_t i, int64_t begin, int64_t count, float* next, float* acc) const {
    const EncodeInput& source = sources_[i];
    const float* x = source.x + begin;
    if (!Corrects()) {
      const float* residual = source.residual ? source.residual + begin : nullptr;
      return compensate_(x, residual, multiplier_, count, acc);
    }
    const MomentumStep step{multiplier_, scales_[i], correction_.momentum, correction_.nesterov};
    return advance_(x, correction_.states[i].u + begin, source.residual + begin, step, count, next,
                    acc);
  }

  uint32_t Sampled(int64_t i) const {
    const EncodeInput& source = sources_[i];
    if (source.n < kWorthSampling) return 0;
    const float* u = Corrects() ? correction_.states[i].u : nullptr;
    return SampledKey(source.n, selection_.ks[i], {source.x, source.residual, u},
                      [&](int64_t at, float* acc) {
                        float next[kRun];
                        Advanced(i, at, kRun, next, acc);
                      });
  }

  bool Encode(size_t i, int64_t first, int64_t last) {
    const EncodeInput& source = sources_[i];
    Work& work = works_[i];
    Buffers& buffers = Buffers::OfThread();
    float* next = Corrects() ? correction_.states[i].next : nullptr;
    const bool collecting = work.least > 0 && work.total.load() <= work.limit;
    const bool past =
        bypass_ && source.residual_out != source.x;  // lines of x are in the caches already
    bool finite = true;
    int64_t found = 0;
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      float* room = source.residual_out ? buffers.acc : nullptr;
      finite &= Advanced(i, begin, count, buffers.next, room);
      const float* acc = room ? room : source.x + begin;
      if (collecting) {
        found +=
            collect_(acc, begin, count, work.least, buffers.indices + found, buffers.bits + found);
      }
      Note(i, begin, count, acc);
      if (room) Store(room, 4 * count, past, source.residual_out + begin);
      if (next) Store(buffers.next, 4 * count, bypass_, next + begin);
    }
    EndStores(bypass_);
    if (collecting) {
      work.stretches[first / kGrain].Own(buffers.indices, buffers.bits, found);
      work.total += found;
    } else {
      work.total = INT64_MAX / 2;
    }
    return finite;
  }

  // Keeps the keys of those elements of a chunk that belong to the tensor's sample.
  void Note(size_t i, int64_t begin, int64_t count, const float* acc) {
    Work& work = works_[i];
    if (work.sample.empty()) return;
    const int64_t stride = samplings_[i].stride, size = samplings_[i].size;
    int64_t j = begin > work.start ? CeilDiv(begin - work.start, stride) : 0;
    for (int64_t at = work.start + j * stride; j < size && at < begin + count; ++j, at += stride) {
      work.sample[j] = BitsOf(acc[at - begin]) & kMagnitude;
    }
  }

  void Finish() {
    std::vector<int64_t> alone, shared;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].n == 0) continue;
      (sources_[i].n > loop_.total() / 4 ? alone : shared).push_back(i);
    }
    const DenormalsAreZero scope;
    for (const int64_t i : alone) FinishOne(executor_, i);
    executor_.For(shared.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t j = begin; j < end; ++j) FinishOne(Serial(), shared[j]);
    });
  }

  void FinishOne(const Executor& executor, int64_t i) {
    const EncodeInput& source = sources_[i];
    Work& work = works_[i];
    const int64_t k = selection_.ks[i];
    if (work.least > 0 && work.total <= work.limit) {
      const Stretches some{work.stretches.data(), static_cast<int64_t>(work.stretches.size())};
      const uint32_t floor = Floor(executor, i, some);
      // Whatever can be sent must be among those collected.
      if (work.total >= k || floor >= work.least) {
        Take(executor, i, some, floor, work.least);
        return;
      }
    }
    const std::vector<Stretch> pieces =
        Whole(source.residual_out ? source.residual_out : source.x, source.n);
    const Stretches all{pieces.data(), static_cast<int64_t>(pieces.size())};
    Take(executor, i, all, Floor(executor, i, all), 0);
  }

  // The smallest key that is sent of tensor i, as these elements tell.
  uint32_t Floor(const Executor& executor, int64_t i, Stretches stretches) {
    std::vector<uint32_t>& sample = works_[i].sample;
    if (sample.empty()) return kSmallestNormal;
    const int64_t k = selection_.ks[i], rank = samplings_[i].rank;
    std::nth_element(sample.begin(), sample.begin() + (rank - 1), sample.end(),
                     std::greater<uint32_t>());
    float threshold = FloatOf(std::min(sample[rank - 1], kInfinity));
    // NaN takes some of the k places.
    const int64_t lost = std::min(k, Reaching(executor, stretches, kInfinity + 1));
    uint32_t floor = 0;
    for (int round = 0; round <= kLowerings; ++round, threshold *= kLower) {
      floor = std::max(BitsOf(threshold), kSmallestNormal);
      const int64_t passing = std::min(k, Reaching(executor, stretches, floor)) - lost;
      if (5 * passing >= 4 * k) break;
    }
    return floor;
  }

  // How many elements have at least this key.
  static int64_t Reaching(const Executor& executor, Stretches stretches, uint32_t least) {
    std::atomic<int64_t> total{0};
    executor.For(stretches.size, 16, [&](int64_t begin, int64_t end) {
      int64_t own = 0;
      for (int64_t s = begin; s < end; ++s) {
        for (int64_t i = 0; i < stretches[s].count; ++i) own += stretches[s].Key(i) >= least;
      }
      total += own;
    });
    return total;
  }

  // Sends what is to be sent of these elements of tensor i, whose keys are at least `least`.
  void Take(const Executor& executor, int64_t i, Stretches stretches, uint32_t floor,
            uint32_t least) {
    const int64_t k = selection_.ks[i];
    Bound bound{floor - 1, 0, kInfinity};
    if (Total(stretches) > k) {
      const Bound largest =
          least ? LargestFrom(stretches, least, k) : Largest(executor, stretches, k);
      if (largest.key >= floor) bound = {largest.key, largest.ties, kInfinity};
    }
    float* values = selection_.values + works_[i].offset;
    int32_t* indices = selection_.indices + works_[i].offset;
    const int64_t written =
        Send(executor, stretches, bound, {values, indices, sources_[i].residual_out, false});
    std::fill(values + written, values + k, 0.0f);
    std::fill(indices + written, indices + k, 0);
    counts_[i] = static_cast<int32_t>(written);
    if (!Corrects() || !correction_.masked) return;
    for (int64_t j = 0; j < written; ++j) correction_.states[i].next[indices[j]] = 0.0f;
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const Correction& correction_;
  const std::vector<Sampling>& samplings_;
  const Selection& selection_;
  int32_t* const counts_;
  const ListLoop loop_;
  const bool bypass_;
  const Compensate compensate_ = ChooseCompensate();
  const Collect collect_ = ChooseCollect();
  const Advance advance_ = ChooseAdvance();
  std::vector<Work> works_;
  std::vector<float> scales_;
};

}  // namespace

bool SampledKList(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const Correction& correction,
                  const std::vector<Sampling>& samplings, const Selection& selection,
                  int32_t* counts) {
  return SampledSelector(executor, sources, multiplier, correction, samplings, selection, counts)
      .Run();
}

}  // namespace grace
