// How: a sample gives, for each side, a key that somewhat more elements reach than are sent. One
// pass over memory computes acc, writes it to `residual_out`, counts the elements of each side, and
// collects those that reach their key, out of which the largest are found exactly. Where the sample
// misled, all elements are collected in a second pass.
#include "kernels/select/two_means.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>

#include "kernels/base/collect.h"
#include "kernels/base/dispatch.h"
#include "kernels/select/select.h"

#define GRACE_KERNEL "kernels/select/two_means-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using Keys = std::array<uint32_t, 2>;  // of the positive side, of the negative side
using Sizes = std::array<int64_t, 2>;

int SideOf(uint32_t bits) { return bits >> 31; }

// What a stretch of a tensor has that may be sent, in order of index.
struct Found {
  std::vector<int32_t> indices;
  std::vector<uint32_t> bits;
};

// How many are sent of each side that has so many elements.
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

class SideSelector {
 public:
  SideSelector(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
               const TwoMeans& sent)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        sent_(sent),
        loop_(LoopOver(sources)),
        bypass_(TooLargeToCache(loop_.total())),
        tensors_(sources.size()) {}

  bool Run() {
    Prepare();
    std::atomic<bool> finite{true};
    loop_.For(executor_, CutAt{kGrain}, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (; begin < end; begin += kGrain) {
        if (!CollectFrom(i, begin, std::min(end, begin + kGrain))) finite = false;
      }
    });
    executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t i = begin; i < end; ++i) Finish(i);
    });
    return finite;
  }

 private:
  struct Tensor {
    Keys least{kSmallestNormal, kSmallestNormal};  // what is collected
    int64_t limit = INT64_MAX;                     // how many collected elements are still worth it
    int64_t entries = 0, words = 0;                // where its parts begin
    std::atomic<int64_t> total{0}, positive{0}, negative{0};
    std::vector<Found> stretches;
  };

  void Prepare() {
    int64_t entries = 0, words = 0;
    for (size_t i = 0; i < sources_.size(); ++i) {
      Tensor& tensor = tensors_[i];
      tensor.entries = entries;
      tensor.words = words;
      tensor.stretches.resize(CeilDiv(sources_[i].n, kGrain));
      entries += sent_.ks[i];
      words += PackedWords(sent_.ks[i], 1);
    }
    executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t i = begin; i < end; ++i) Sample(i);
    });
  }

  // Keys that a little more elements of a side reach than are sent, if a sample tells.
  void Sample(int64_t i) {
    constexpr int64_t kWorthSampling = 2048;
    const int64_t n = sources_[i].n, k = sent_.ks[i];
    if (n < kWorthSampling || k > n / 4) return;
    const double share = static_cast<double>(k) / static_cast<double>(n);
    const int64_t wanted = std::clamp(static_cast<int64_t>(400 / share), n / 512, n / 256);
    const int64_t fewest = std::min<int64_t>(1024, n / 4);
    const int64_t runs = std::clamp<int64_t>(wanted, fewest, 1 << 16) / kRun;
    const int64_t step = (n / kRun / runs) | 1;
    std::array<std::vector<uint32_t>, 2> keys;
    for (int64_t r = 0; r < runs; ++r) {
      float acc[kRun];
      const float* own = Acc(i, r * step % (n / kRun) * kRun, kRun, acc);
      for (int64_t j = 0; j < kRun; ++j) {
        const uint32_t bits = BitsOf(own[j]);
        if ((bits & kMagnitude) >= kSmallestNormal) keys[SideOf(bits)].push_back(bits & kMagnitude);
      }
    }
    Tensor& tensor = tensors_[i];
    const double seen = static_cast<double>(keys[0].size() + keys[1].size());
    // Zeros are not sent: of all others the share is larger.
    const double fraction = share * static_cast<double>(runs * kRun) / std::max(seen, 1.0);
    for (int side = 0; side < 2; ++side) {
      std::vector<uint32_t>& own = keys[side];
      const double expected = static_cast<double>(own.size()) * fraction;
      const int64_t rank = static_cast<int64_t>(expected + 4 * std::sqrt(expected) + 2);
      if (rank >= static_cast<int64_t>(own.size())) continue;
      std::nth_element(own.begin(), own.begin() + rank, own.end(), std::greater<uint32_t>());
      tensor.least[side] = own[rank];
    }
    tensor.limit = 2 * k + n / 32;
  }

  // Neighbours in memory share a cache line.
  static constexpr int64_t kRun = 4;

  // acc of tensor i from its inputs, before anything was kept.
  const float* Acc(int64_t i, int64_t at, int64_t count, float* room) const {
    const EncodeInput& source = sources_[i];
    if (!source.residual && multiplier_ == 1.0f) return source.x + at;
    compensate_(source.x + at, source.residual ? source.residual + at : nullptr, multiplier_, count,
                room);
    return room;
  }

  bool CollectFrom(int64_t i, int64_t first, int64_t last) {
    // The buffers of one thread.
    static thread_local std::array<int32_t, kGrain + kSlack> indices;
    static thread_local std::array<uint32_t, kGrain + kSlack> bits;
    Tensor& tensor = tensors_[i];
    int64_t count = 0, positive = 0, negative = 0;
    const bool finite =
        EncodePiece(sources_[i], multiplier_, compensate_, first, last, bypass_,
                    [&](int64_t begin, int64_t size, const float* acc, float*) {
                      count += pick_(acc, begin, size, tensor.least.data(), indices.data() + count,
                                     bits.data() + count, &positive, &negative);
                    });
    tensor.positive += positive;
    tensor.negative += negative;
    if ((tensor.total += count) <= tensor.limit) {
      Found& found = tensor.stretches[first / kGrain];
      found.indices.assign(indices.data(), indices.data() + count);
      found.bits.assign(bits.data(), bits.data() + count);
    }
    return finite;
  }

  // Everything that is not zero, of a tensor of which too little or too much was collected.
  void CollectAll(int64_t i) {
    const EncodeInput& source = sources_[i];
    Tensor& tensor = tensors_[i];
    tensor.least = {kSmallestNormal, kSmallestNormal};
    std::array<float, kChunk> room;
    std::array<int32_t, kChunk + kSlack> indices;
    std::array<uint32_t, kChunk + kSlack> bits;
    tensor.stretches.assign(1, {});
    Found& found = tensor.stretches[0];
    int64_t positive, negative;
    for (int64_t begin = 0; begin < source.n; begin += kChunk) {
      const int64_t size = std::min(kChunk, source.n - begin);
      const float* acc =
          source.residual_out ? source.residual_out + begin : Acc(i, begin, size, room.data());
      const int64_t count = pick_(acc, begin, size, tensor.least.data(), indices.data(),
                                  bits.data(), &positive, &negative);
      found.indices.insert(found.indices.end(), indices.data(), indices.data() + count);
      found.bits.insert(found.bits.end(), bits.data(), bits.data() + count);
    }
  }

  // The keys that were collected, by side.
  std::array<std::vector<uint32_t>, 2> KeysOf(const Tensor& tensor) const {
    std::array<std::vector<uint32_t>, 2> keys;
    for (const Found& found : tensor.stretches) {
      for (const uint32_t bits : found.bits) keys[SideOf(bits)].push_back(bits & kMagnitude);
    }
    return keys;
  }

  // Which keys of a side are sent.
  static Bound BoundOf(const std::vector<uint32_t>& keys, uint32_t least, int64_t share) {
    const int64_t size = keys.size();
    if (share == 0) return {kMagnitude, 0, kMagnitude};
    if (size <= share) return {0, 0, kMagnitude};
    Stretch stretch;
    stretch.count = size;
    stretch.bits = keys.data();
    return LargestFrom({&stretch, 1}, least, share);
  }

  void Finish(int64_t i) {
    Tensor& tensor = tensors_[i];
    const Sizes sizes{tensor.positive, tensor.negative};
    const Sizes shares = Shares(sizes, sent_.ks[i]);
    auto keys = KeysOf(tensor);
    bool enough = tensor.total <= tensor.limit;
    for (int side = 0; side < 2; ++side) {
      enough &= static_cast<int64_t>(keys[side].size()) >= shares[side];
    }
    if (!enough) {
      CollectAll(i);
      keys = KeysOf(tensor);
    }
    std::array<Bound, 2> bounds{BoundOf(keys[0], tensor.least[0], shares[0]),
                                BoundOf(keys[1], tensor.least[1], shares[1])};
    int32_t* indices = sent_.indices + tensor.entries;
    std::vector<float> values(sent_.ks[i]);
    int64_t count = 0;
    for (const Found& found : tensor.stretches) {
      for (size_t j = 0; j < found.bits.size(); ++j) {
        const uint32_t bits = found.bits[j], key = bits & kMagnitude;
        Bound& bound = bounds[SideOf(bits)];
        const bool tie = key == bound.key && bound.ties > 0;
        bound.ties -= tie;
        if (!tie && key <= bound.key) continue;
        indices[count] = found.indices[j];
        values[count++] = FloatOf(bits);
      }
    }
    Write(i, values, count, shares);
  }

  // The parts of tensor i, and what is kept of it, from the values of its entries.
  void Write(int64_t i, const std::vector<float>& values, int64_t count, const Sizes& shares) {
    const Tensor& tensor = tensors_[i];
    int32_t* indices = sent_.indices + tensor.entries;
    uint32_t* signs = sent_.signs + tensor.words;
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

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const TwoMeans& sent_;
  const ListLoop loop_;
  const bool bypass_;
  const Compensate compensate_ = ChooseCompensate();
  int64_t (*const pick_)(const float*, int64_t, int64_t, const uint32_t*, int32_t*, uint32_t*,
                         int64_t*, int64_t*) = GRACE_CHOOSE(PickSides);
  std::vector<Tensor> tensors_;
};

}  // namespace

bool TwoMeansList(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, const TwoMeans& sent) {
  return SideSelector(executor, sources, multiplier, sent).Run();
}

}  // namespace grace
