// The selection that selector.h has, of acc with momentum correction, in which the floor comes from
// a sample of a given size: the pass notes its keys.
#include "kernels/select/sampled_top_k.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "kernels/base/dispatch.h"
#include "kernels/select/selector.h"

namespace grace {
namespace {

class SampledSelector : public Selector {
 public:
  SampledSelector(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const Correction& correction,
                  const std::vector<Sampling>& samplings, const Selection& selection,
                  int32_t* counts)
      : Selector(executor, sources, multiplier, selection, {0, kInfinity}, counts),
        correction_(correction),
        samplings_(samplings),
        samples_(sources.size()) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const Sampling& sampling = samplings[i];
      if (sampling.stride == 1) continue;
      samples_[i].keys.resize(sampling.size);
      uint32_t word;
      RandomWords(Serial(), sampling.key, 1, &word);
      samples_[i].start = static_cast<int64_t>(static_cast<uint64_t>(word) * sampling.stride >> 32);
    }
    if (Corrects() && correction.limit >= 0) {
      scales_ = ClipScales(executor, sources, multiplier, correction.limit);
    }
  }

 private:
  // What a threshold is found from.
  struct Sample {
    int64_t start = 0;
    std::vector<uint32_t> keys;
  };

  bool Corrects() const { return !correction_.states.empty(); }

  bool Compute(int64_t i, int64_t begin, int64_t count, bool in_pass, float* acc) const override {
    if (!Corrects()) return Selector::Compute(i, begin, count, in_pass, acc);
    const EncodeInput& source = sources_[i];
    const MomentumState& state = correction_.states[i];
    const float scale = scales_.empty() ? 1.0f : scales_[i];
    const MomentumStep step{multiplier_, scale, correction_.momentum, correction_.nesterov};
    alignas(64) float next[kChunk];
    const bool finite = advance_(source.x + begin, state.u + begin, source.residual + begin, step,
                                 count, next, acc);
    if (in_pass) Store(next, 4 * count, Bypasses(i), state.next + begin);
    return finite;
  }

  void Prefetch(int64_t i, int64_t at) const override {
    Selector::Prefetch(i, at);
    if (Corrects()) __builtin_prefetch(correction_.states[i].u + at);
  }

  // Keeps the keys of those elements that belong to the tensor's sample.
  void Note(int64_t i, int64_t begin, int64_t count, const float* acc) override {
    Sample& sample = samples_[i];
    if (sample.keys.empty()) return;
    const int64_t stride = samplings_[i].stride, size = samplings_[i].size;
    int64_t j = begin > sample.start ? CeilDiv(begin - sample.start, stride) : 0;
    for (int64_t at = sample.start + j * stride; j < size && at < begin + count;
         ++j, at += stride) {
      sample.keys[j] = BitsOf(acc[at - begin]) & kMagnitude;
    }
  }

  uint32_t Floor(const Executor& executor, int64_t i, Stretches stretches) override {
    std::vector<uint32_t>& sample = samples_[i].keys;
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

  bool Choose(const Executor& executor, int64_t i, Stretches stretches, bool collected) override {
    if (!Selector::Choose(executor, i, stretches, collected)) return false;
    if (!Corrects() || !correction_.masked) return true;
    const int32_t* indices = selection_.indices + tensors_[i].entries;
    for (int64_t j = 0; j < counts_[i]; ++j) correction_.states[i].next[indices[j]] = 0.0f;
    return true;
  }

  const Correction& correction_;
  const std::vector<Sampling>& samplings_;
  const Advance advance_ = ChooseAdvance();
  std::vector<Sample> samples_;
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
