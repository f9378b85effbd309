#include "kernels/select/select.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "kernels/base/dispatch.h"

namespace grace {

int64_t Total(Stretches stretches) {
  int64_t total = 0;
  for (int64_t s = 0; s < stretches.size; ++s) total += stretches[s].count;
  return total;
}

std::vector<Stretch> Whole(const float* x, int64_t n) {
  std::vector<Stretch> stretches(CeilDiv(n, kGrain));
  for (size_t s = 0; s < stretches.size(); ++s) {
    stretches[s].first = s * kGrain;
    stretches[s].count = std::min(kGrain, n - stretches[s].first);
    stretches[s].bits = reinterpret_cast<const uint32_t*>(x + stretches[s].first);
  }
  return stretches;
}

namespace {

constexpr int kMostBins = 1 << 11;
using Bins = std::array<int64_t, kMostBins>;

// Counts the keys whose bits from `low + width` up equal `prefix` by their `width` bits below.
Bins Histogram(const Executor& executor, Stretches stretches, uint32_t prefix, int low, int width) {
  Bins bins{};
  std::mutex merging;
  executor.For(stretches.size, 16, [&](int64_t begin, int64_t end) {
    // Neighbours often fall into one bin; two sets keep one addition from waiting for the other.
    std::array<std::array<uint32_t, kMostBins + 1>, 2> own{};
    const uint32_t mask = (1u << width) - 1;
    for (int64_t s = begin; s < end; ++s) {
      const Stretch& stretch = stretches[s];
      for (int64_t i = 0; i < stretch.count; ++i) {
        const uint32_t key = stretch.Key(i);
        // What has another prefix is counted in the bin past the end.
        ++own[i & 1][key >> (low + width) == prefix ? key >> low & mask : kMostBins];
      }
    }
    std::lock_guard<std::mutex> lock(merging);
    for (int i = 0; i < kMostBins; ++i) bins[i] += int64_t{own[0][i]} + own[1][i];
  });
  return bins;
}

// The bound of the k largest of these keys, which it reorders.
Bound Ranked(std::vector<uint32_t>& keys, int64_t k) {
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<uint32_t>());
  const uint32_t key = keys[k - 1];
  const int64_t larger = std::count_if(keys.begin(), keys.begin() + (k - 1),
                                       [key](uint32_t other) { return other > key; });
  return {key, k - larger, kMagnitude};
}

// How many elements, by the bound that they have.
template <size_t kSides>
using Counts = std::array<int64_t, kSides>;

template <size_t kSides>
size_t SideOf(uint32_t bits) {
  return kSides == 1 ? 0 : bits >> 31;
}

// What is written of the elements within their bound.
template <size_t kSides>
class Writer {
 public:
  Writer(const Bounds<kSides>& bounds, const Sent& sent) : bounds_(bounds), sent_(sent) {}

  // Of a stretch: from where on to write, and how many of those equal to their bound.
  void Write(const Stretch& stretch, int64_t at, Counts<kSides> ties) const {
    for (int64_t begin = 0; begin < stretch.count; begin += kBatch) {
      const int64_t end = std::min(stretch.count, begin + kBatch);
      // Where in the stretch the chosen elements and the others are. The loop has no branch, since
      // the processor could not predict it.
      std::array<int32_t, kBatch> chosen, others;
      int64_t taken = 0, left = 0;
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t bits = stretch.Bits(i), key = bits & kMagnitude;
        const size_t side = SideOf<kSides>(bits);
        const Bound& bound = bounds_[side];
        const bool tie = key == bound.key, fits = key <= bound.most;
        const bool take = fits & ((key > bound.key) | (tie & (ties[side] > 0)));
        for (size_t s = 0; s < kSides; ++s) ties[s] -= tie & fits & (s == side);
        chosen[taken] = others[left] = static_cast<int32_t>(i);
        taken += take;
        left += !take;
      }
      Take(stretch, chosen.data(), taken, at);
      at += taken;
      if (sent_.residual_out && sent_.cleared) {
        for (int64_t j = 0; j < left; ++j) {
          sent_.residual_out[stretch.Index(others[j])] = FloatOf(stretch.Bits(others[j]));
        }
      }
    }
  }

 private:
  static constexpr int64_t kBatch = 1024;

  void Take(const Stretch& stretch, const int32_t* chosen, int64_t count, int64_t at) const {
    uint32_t largest = 0;
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t bits = stretch.Bits(chosen[j]);
      sent_.indices[at + j] = stretch.Index(chosen[j]);
      sent_.values[at + j] = FloatOf(bits);
      largest = std::max(largest, bits & kMagnitude);
    }
    // What was finite is cleared already, perhaps.
    if (!sent_.residual_out || (sent_.cleared && largest < kInfinity)) return;
    for (int64_t j = 0; j < count; ++j) {
      sent_.residual_out[stretch.Index(chosen[j])] = Rest(BitsOf(sent_.values[at + j]));
    }
  }

  // What is left of a value when it was sent. A zero is sent as +0, so that it stays what it is.
  static float Rest(uint32_t bits) {
    const float value = FloatOf(bits);
    return bits & kMagnitude ? value - value : value;
  }

  const Bounds<kSides> bounds_;
  const Sent sent_;
};

// The bound of the k largest keys, most of which are close to `least` and none below it.
Bound LargestFrom(Stretches stretches, uint32_t least, int64_t k) {
  // Two octaves in bins so narrow that the one of the k-th key holds few.
  constexpr int kWidth = 13;
  const auto bin_of = [least](uint32_t key) {
    return std::min<uint32_t>((key - least) >> kWidth, kMostBins - 1);
  };
  std::array<std::array<uint32_t, kMostBins>, 2> bins{};
  for (int64_t s = 0; s < stretches.size; ++s) {
    for (int64_t i = 0; i < stretches[s].count; ++i) ++bins[i & 1][bin_of(stretches[s].Key(i))];
  }
  int64_t larger = 0;
  uint32_t bin = kMostBins - 1;
  for (; larger + bins[0][bin] + bins[1][bin] < k; --bin) larger += bins[0][bin] + bins[1][bin];
  std::vector<uint32_t> keys(bins[0][bin] + bins[1][bin] + 1);
  size_t count = 0;
  for (int64_t s = 0; s < stretches.size; ++s) {
    for (int64_t i = 0; i < stretches[s].count; ++i) {
      keys[count] = stretches[s].Key(i);
      count += bin_of(keys[count]) == bin;
    }
  }
  keys.pop_back();
  return Ranked(keys, k - larger);
}

}  // namespace

Bound Largest(const Executor& executor, Stretches stretches, int64_t k, uint32_t least) {
  const int64_t total = Total(stretches);
  constexpr int64_t kFew = 2048;
  if (total <= kFew) {
    std::vector<uint32_t> keys;
    keys.reserve(total);
    for (int64_t s = 0; s < stretches.size; ++s) {
      for (int64_t i = 0; i < stretches[s].count; ++i) keys.push_back(stretches[s].Key(i));
    }
    return Ranked(keys, k);
  }
  if (least > 0) return LargestFrom(stretches, least, k);
  uint32_t key = 0;
  int64_t larger = 0;
  int low = 31;
  for (const int width : {11, 10, 10}) {
    low -= width;
    const Bins bins = Histogram(executor, stretches, key, low, width);
    uint32_t bin = (1u << width) - 1;
    while (larger + bins[bin] < k) larger += bins[bin--];
    key = key << width | bin;
  }
  return {key, k - larger, kMagnitude};
}

template <size_t kSides>
int64_t Send(const Executor& executor, Stretches stretches, const Bounds<kSides>& bounds,
             const Sent& sent) {
  const int64_t size = stretches.size;
  std::vector<int64_t> above(size);
  std::vector<Counts<kSides>> equal(size);
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t more = 0;
      Counts<kSides> same{};
      for (int64_t i = 0; i < stretches[s].count; ++i) {
        const uint32_t bits = stretches[s].Bits(i), key = bits & kMagnitude;
        const size_t side = SideOf<kSides>(bits);
        const Bound& bound = bounds[side];
        more += key > bound.key && key <= bound.most;
        const bool tie = key == bound.key && key <= bound.most;
        for (size_t t = 0; t < kSides; ++t) same[t] += tie & (t == side);
      }
      above[s] = more;
      equal[s] = same;
    }
  });
  // Where each stretch writes, and how many ties it may still take.
  std::vector<int64_t> start(size);
  int64_t written = 0;
  Counts<kSides> left;
  for (size_t side = 0; side < kSides; ++side) left[side] = bounds[side].ties;
  for (int64_t s = 0; s < size; ++s) {
    start[s] = written;
    written += above[s];
    for (size_t side = 0; side < kSides; ++side) {
      const int64_t taken = std::min(left[side], equal[s][side]);
      equal[s][side] = taken;
      left[side] -= taken;
      written += taken;
    }
  }
  const Writer<kSides> writer(bounds, sent);
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t s = begin; s < end; ++s) writer.Write(stretches[s], start[s], equal[s]);
  });
  return written;
}

template int64_t Send<1>(const Executor&, Stretches, const Bounds<1>&, const Sent&);
template int64_t Send<2>(const Executor&, Stretches, const Bounds<2>&, const Sent&);

}  // namespace grace
