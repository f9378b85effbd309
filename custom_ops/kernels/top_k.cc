// How: a sample gives a key that somewhat more than k elements reach; one pass at reading speed
// collects those that do, per stretch of x, in order; a radix select over them finds the k-th key
// exactly. If the sample misled (too few reached it, or far too many, as with ties), the radix
// select runs over x itself, in three passes.
#include "top_k.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "dispatch.h"
#include "words.h"

namespace grace {

// Elements a collecting function may write beyond the last it keeps.
constexpr int64_t kSlack = 16;

namespace generic {

// Writes the index and the bits of each element of x[begin, end) whose key is at least `least`,
// and returns how many there are.
static int64_t Collect(const float* x, int64_t begin, int64_t end, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t own = BitsOf(x[i]);
    indices[count] = static_cast<int32_t>(i);
    bits[count] = own;
    count += (own & kMagnitude) >= least;
  }
  return count;
}

}  // namespace generic

#if GRACE_X86
GRACE_BEGIN_AVX2
namespace avx2 {

// The lanes set in each mask, first to last, then zeros.
struct LaneTable {
  alignas(32) int32_t lanes[256][8] = {};
  constexpr LaneTable() {
    for (int mask = 0; mask < 256; ++mask) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) lanes[mask][count++] = lane;
      }
    }
  }
};
static constexpr LaneTable kLanes;

static int64_t Collect(const float* x, int64_t begin, int64_t end, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  const __m256i below = _mm256_set1_epi32(static_cast<int32_t>(least) - 1);
  const __m256i magnitude = _mm256_set1_epi32(kMagnitude), eight = _mm256_set1_epi32(8);
  __m256i at = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(begin)),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  int64_t count = 0, i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i reaches = _mm256_cmpgt_epi32(_mm256_and_si256(v, magnitude), below);
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(reaches));
    if (mask) {
      const __m256i lanes =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes.lanes[mask]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + count),
                          _mm256_permutevar8x32_epi32(at, lanes));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits + count),
                          _mm256_permutevar8x32_epi32(v, lanes));
      count += __builtin_popcount(mask);
    }
    at = _mm256_add_epi32(at, eight);
  }
  return count + generic::Collect(x, i, end, least, indices + count, bits + count);
}

}  // namespace avx2
GRACE_END

GRACE_BEGIN_AVX512
namespace avx512 {

static int64_t Collect(const float* x, int64_t begin, int64_t end, uint32_t least, int32_t* indices,
                       uint32_t* bits) {
  const __m512i low = _mm512_set1_epi32(static_cast<int32_t>(least));
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude), sixteen = _mm512_set1_epi32(16);
  __m512i at = _mm512_add_epi32(
      _mm512_set1_epi32(static_cast<int32_t>(begin)),
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  int64_t count = 0, i = begin;
  // Compressing into a register and storing all of it beats the store that compresses.
#pragma GCC unroll 4
  for (; i + 16 <= end; i += 16) {
    const __m512i v = _mm512_loadu_si512(x + i);
    const __mmask16 reaches = _mm512_cmpge_epi32_mask(_mm512_and_si512(v, magnitude), low);
    _mm512_storeu_si512(indices + count, _mm512_maskz_compress_epi32(reaches, at));
    _mm512_storeu_si512(bits + count, _mm512_maskz_compress_epi32(reaches, v));
    count += __builtin_popcount(reaches);
    at = _mm512_add_epi32(at, sixteen);
  }
  return count + generic::Collect(x, i, end, least, indices + count, bits + count);
}

}  // namespace avx512
GRACE_END
#endif

namespace {

// Some elements of x in order of index: all from `first` on where indices is empty, or these.
struct Stretch {
  int64_t first = 0;
  int64_t count = 0;
  const uint32_t* bits = nullptr;
  std::vector<int32_t> indices;
  std::vector<uint32_t> kept;

  int32_t Index(int64_t i) const {
    return indices.empty() ? static_cast<int32_t>(first + i) : indices[i];
  }
};

using Stretches = std::vector<Stretch>;

Stretches Whole(const float* x, int64_t n) {
  Stretches stretches(CeilDiv(n, kGrain));
  for (size_t s = 0; s < stretches.size(); ++s) {
    stretches[s].first = s * kGrain;
    stretches[s].count = std::min(kGrain, n - stretches[s].first);
    // The bits of floats, only ever read through memcpy.
    stretches[s].bits = reinterpret_cast<const uint32_t*>(x + stretches[s].first);
  }
  return stretches;
}

uint32_t KeyAt(const Stretch& stretch, int64_t i) {
  uint32_t bits;
  std::memcpy(&bits, stretch.bits + i, sizeof bits);
  return bits & kMagnitude;
}

// A key that a little more than k of x's keys reach, if a regular sample of x tells.
uint32_t SampledKey(const float* x, int64_t n, int64_t k) {
  const double fraction = static_cast<double>(k) / static_cast<double>(n);
  const int64_t size = std::clamp(static_cast<int64_t>(400 / fraction), n / 512, n / 64);
  const int64_t samples = std::clamp<int64_t>(size, 1024, 1 << 16);
  std::vector<uint32_t> keys(samples);
  // An odd step visits all columns of a matrix with an even number of them.
  const int64_t step = (n / samples) | 1;
  for (int64_t i = 0; i < samples; ++i) keys[i] = BitsOf(x[i * step % n]) & kMagnitude;
  const double expected = static_cast<double>(samples) * fraction;
  const int64_t rank = std::min<int64_t>(
      samples - 1, static_cast<int64_t>(expected + 4 * std::sqrt(expected) + 2));
  std::nth_element(keys.begin(), keys.begin() + rank, keys.end(), std::greater<uint32_t>());
  return keys[rank];
}

// All elements whose key is at least `least`, or nothing if they are more than `limit`.
Stretches Reaching(const Executor& executor, const float* x, int64_t n, uint32_t least,
                   int64_t limit) {
  const auto collect = GRACE_CHOOSE(Collect);
  Stretches stretches(CeilDiv(n, kGrain));
  std::atomic<int64_t> total{0};
  executor.For(n, kGrain, [&](int64_t begin, int64_t end) {
    if (total.load(std::memory_order_relaxed) > limit) return;
    static thread_local std::array<int32_t, kGrain + kSlack> indices;
    static thread_local std::array<uint32_t, kGrain + kSlack> bits;
    const int64_t count = collect(x, begin, end, least, indices.data(), bits.data());
    Stretch& own = stretches[begin / kGrain];
    own.indices.assign(indices.begin(), indices.begin() + count);
    own.kept.assign(bits.begin(), bits.begin() + count);
    own.count = count;
    own.bits = own.kept.data();
    total += count;
  });
  if (total > limit) stretches.clear();
  return stretches;
}

int64_t Total(const Stretches& stretches) {
  int64_t total = 0;
  for (const Stretch& stretch : stretches) total += stretch.count;
  return total;
}

constexpr int kMostBins = 1 << 11;
using Bins = std::array<int64_t, kMostBins>;

// Counts the keys whose bits from `low + width` up equal `prefix` by their `width` bits below.
Bins Histogram(const Executor& executor, const Stretches& stretches, uint32_t prefix, int low,
               int width) {
  Bins bins{};
  std::mutex merging;
  executor.For(stretches.size(), 16, [&](int64_t begin, int64_t end) {
    // Neighbours often fall into one bin; two sets keep one addition from waiting for the other.
    std::array<std::array<uint32_t, kMostBins + 1>, 2> own{};
    const uint32_t mask = (1u << width) - 1;
    for (int64_t s = begin; s < end; ++s) {
      const Stretch& stretch = stretches[s];
      for (int64_t i = 0; i < stretch.count; ++i) {
        const uint32_t key = KeyAt(stretch, i);
        // What has another prefix is counted in the bin past the end.
        ++own[i & 1][key >> (low + width) == prefix ? key >> low & mask : kMostBins];
      }
    }
    std::lock_guard<std::mutex> lock(merging);
    for (int i = 0; i < kMostBins; ++i) bins[i] += int64_t{own[0][i]} + own[1][i];
  });
  return bins;
}

// The k-th largest key, and how many are larger.
struct Kth {
  uint32_t key;
  int64_t larger;
};

Kth Select(const Executor& executor, const Stretches& stretches, int64_t k) {
  Kth kth{0, 0};
  int low = 31;
  for (const int width : {11, 10, 10}) {
    low -= width;
    const Bins bins = Histogram(executor, stretches, kth.key, low, width);
    uint32_t bin = (1u << width) - 1;
    while (kth.larger + bins[bin] < k) kth.larger += bins[bin--];
    kth.key = kth.key << width | bin;
  }
  return kth;
}

// Writes the elements above the k-th key, and the first of those equal to it.
void Emit(const Executor& executor, const Stretches& stretches, int64_t k, Kth kth, float* values,
          int32_t* indices) {
  const int64_t size = stretches.size();
  std::vector<int64_t> above(size), equal(size);
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t more = 0, same = 0;
      for (int64_t i = 0; i < stretches[s].count; ++i) {
        const uint32_t key = KeyAt(stretches[s], i);
        more += key > kth.key;
        same += key == kth.key;
      }
      above[s] = more;
      equal[s] = same;
    }
  });
  // Where each stretch writes, and how many ties it may still take.
  std::vector<int64_t> start(size), ties(size);
  int64_t written = 0, left = k - kth.larger;
  for (int64_t s = 0; s < size; ++s) {
    start[s] = written;
    ties[s] = std::min(left, equal[s]);
    left -= ties[s];
    written += above[s] + ties[s];
  }
  executor.For(size, 4, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t at = start[s], may = ties[s];
      for (int64_t i = 0, last = at + above[s] + may; at < last; ++i) {
        const uint32_t key = KeyAt(stretches[s], i);
        if (key < kth.key || (key == kth.key && may-- <= 0)) continue;
        std::memcpy(values + at, stretches[s].bits + i, sizeof *values);
        indices[at++] = stretches[s].Index(i);
      }
    }
  });
}

}  // namespace

void TopK(const Executor& executor, const float* x, int64_t n, int64_t k, float* values,
          int32_t* indices) {
  constexpr int64_t kWorthSampling = 1 << 14;
  Stretches stretches;
  if (n >= kWorthSampling && k <= n / 4) {
    const int64_t limit = 2 * k + n / 64;
    stretches = Reaching(executor, x, n, SampledKey(x, n, k), limit);
  }
  if (Total(stretches) < k) stretches = Whole(x, n);
  Emit(executor, stretches, k, Select(executor, stretches, k), values, indices);
}

}  // namespace grace
