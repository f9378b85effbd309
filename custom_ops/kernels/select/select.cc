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

// What is written of the elements within a bound.
class Writer {
 public:
  Writer(Bound bound, const Sent& sent) : bound_(bound), sent_(sent) {}

  // Of a stretch: from where on to write, and how many of those equal to the bound.
  void Write(const Stretch& stretch, int64_t at, int64_t ties) const {
    for (int64_t begin = 0; begin < stretch.count; begin += kBatch) {
      const int64_t end = std::min(stretch.count, begin + kBatch);
      // Where in the stretch the chosen ones and the others are; without a branch, which nobody
      // could predict.
      std::array<int32_t, kBatch> chosen, others;
      int64_t taken = 0, left = 0;
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t key = stretch.Key(i);
        const bool tie = key == bound_.key, fits = key <= bound_.most;
        const bool take = fits & ((key > bound_.key) | (tie & (ties > 0)));
        ties -= tie & fits;
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

  const Bound bound_;
  const Sent sent_;
};

}  // namespace

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

Bound Largest(const Executor& executor, Stretches stretches, int64_t k) {
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

int64_t Send(const Executor& executor, Stretches stretches, Bound bound, const Sent& sent) {
  const int64_t size = stretches.size;
  std::vector<int64_t> above(size), equal(size);
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t more = 0, same = 0;
      for (int64_t i = 0; i < stretches[s].count; ++i) {
        const uint32_t key = stretches[s].Key(i);
        more += key > bound.key && key <= bound.most;
        same += key == bound.key && key <= bound.most;
      }
      above[s] = more;
      equal[s] = same;
    }
  });
  // Where each stretch writes, and how many ties it may still take.
  std::vector<int64_t> start(size), ties(size);
  int64_t written = 0, left = bound.ties;
  for (int64_t s = 0; s < size; ++s) {
    start[s] = written;
    ties[s] = std::min(left, equal[s]);
    left -= ties[s];
    written += above[s] + ties[s];
  }
  const Writer writer(bound, sent);
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t s = begin; s < end; ++s) writer.Write(stretches[s], start[s], ties[s]);
  });
  return written;
}

}  // namespace grace
