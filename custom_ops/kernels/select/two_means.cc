// The selection that selector.h has, with two sides: each sends as large a share of its elements.
#include "kernels/select/two_means.h"

#include <algorithm>
#include <array>

#include "kernels/base/dispatch.h"
#include "kernels/select/selector.h"

namespace grace {
namespace {

using Sizes = std::array<int64_t, 2>;  // of the positive side, of the negative side

int SideOf(uint32_t bits) { return bits >> 31; }

// The number of elements sent of each side, given the sizes of both sides.
Sizes Shares(const Sizes& sizes, int64_t k) {
  const uint64_t all = sizes[0] + sizes[1];
  if (all <= static_cast<uint64_t>(k)) return sizes;
  const int64_t positive = (2 * static_cast<uint64_t>(k) * sizes[0] + all) / (2 * all);
  return {positive, k - positive};
}

// The sum of values [first, first + size), those of the other side and those beyond `count` as 0,
// over adjacent pairs. `size` is a power of two.
double SumOfSide(const float* values, int64_t first, int64_t size, int64_t count, int side) {
  if (first >= count) return 0;
  if (size > 1) {
    return SumOfSide(values, first, size / 2, count, side) +
           SumOfSide(values, first + size / 2, size / 2, count, side);
  }
  return SideOf(BitsOf(values[first])) == side ? values[first] : 0.0;
}

int64_t PowerOfTwo(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

class SideSelector : public Selector {
 public:
  SideSelector(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
               const TwoMeans& sent)
      : Selector(executor, sources, multiplier, {sent.ks, nullptr, sent.indices},
                 {kSmallestNormal, kMagnitude}, sent.counts, 2),
        sent_(sent) {
    int64_t words = 0;
    for (const int64_t k : sent.ks) {
      words_.push_back(words);
      words += PackedWords(k, 1);
    }
  }

 private:
  bool Choose(const Executor& executor, int64_t i, Stretches stretches, bool collected) override {
    const Tensor& tensor = tensors_[i];
    const Sizes shares = Shares({tensor.sizes[0], tensor.sizes[1]}, sent_.ks[i]);
    const auto keys = KeysOf(stretches);
    Bounds<2> bounds;
    for (int side = 0; side < 2; ++side) {
      const int64_t size = keys[side].size();
      if (size < shares[side]) return false;
      Stretch own;
      own.Hold(nullptr, keys[side].data(), size, false);
      const uint32_t sampled = tensor.least[side] > range_.floor ? tensor.least[side] : 0;
      bounds[side] = shares[side] == 0 ? Bound{kMagnitude, 0, kMagnitude}
                                       : BoundOf(executor, {&own, 1}, shares[side],
                                                 collected ? sampled : 0, range_);
    }
    std::vector<float> values(sent_.ks[i]);
    int32_t* const indices = sent_.indices + tensor.entries;
    const int64_t count =
        Send<2>(executor, stretches, bounds, {values.data(), indices, nullptr, false});
    Write(i, values, count, shares);
    return true;
  }

  // The keys that may be sent, by side.
  static std::array<std::vector<uint32_t>, 2> KeysOf(Stretches stretches) {
    std::array<std::vector<uint32_t>, 2> keys;
    for (int64_t s = 0; s < stretches.size; ++s) {
      for (int64_t j = 0; j < stretches[s].count; ++j) {
        const uint32_t bits = stretches[s].Bits(j), key = bits & kMagnitude;
        if (key >= kSmallestNormal) keys[SideOf(bits)].push_back(key);
      }
    }
    return keys;
  }

  // The parts of tensor i, and its residual, from the values of its entries.
  void Write(int64_t i, const std::vector<float>& values, int64_t count, const Sizes& shares) {
    int32_t* indices = sent_.indices + tensors_[i].entries;
    uint32_t* signs = sent_.signs + words_[i];
    float* means = sent_.means + 2 * i;
    const int64_t k = sent_.ks[i];
    std::fill(indices + count, indices + k, 0);
    sent_.counts[i] = static_cast<int32_t>(count);
    for (int side = 0; side < 2; ++side) {
      const double sum = SumOfSide(values.data(), 0, PowerOfTwo(k), count, side);
      means[side] =
          shares[side] ? static_cast<float>(sum / static_cast<double>(shares[side])) : 0.0f;
    }
    std::fill_n(signs, PackedWords(k, 1), 0u);
    float* residual_out = sources_[i].residual_out;
    for (int64_t j = 0; j < count; ++j) {
      const int side = SideOf(BitsOf(values[j]));
      signs[j >> 5] |= static_cast<uint32_t>(1 - side) << (j & 31);
      if (residual_out) residual_out[indices[j]] = values[j] - means[side];
    }
  }

  const TwoMeans& sent_;
  std::vector<int64_t> words_;  // where each tensor's signs begin
};

}  // namespace

bool TwoMeansList(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const TwoMeans& sent) {
  return SideSelector(executor, sources, multiplier, sent).Run();
}

}  // namespace grace
