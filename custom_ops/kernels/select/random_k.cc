#include "kernels/select/random_k.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/sparse/scatter_list.h"

#define GRACE_KERNEL "kernels/select/random_k-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// The tables of the rounds.
struct Network : Pairs {
  Network(const PhiloxKey& key, int64_t n) : Pairs(n), n(n) {
    table.resize(rounds / 2 * (a + b));
    RandomWords(Serial(), key, table.size(), table.data());
    uint32_t* word = table.data();
    for (int64_t round = 0; round < rounds; ++round) {
      const uint64_t scale = round % 2 ? b : a;
      for (int64_t j = 0, size = round % 2 ? a : b; j < size; ++j, ++word) {
        *word = static_cast<uint32_t>(*word * scale >> 32);
      }
    }
  }

  int64_t n;
  std::vector<uint32_t> table;
};

constexpr int64_t kAtOnce = 256;

// What the numbers from `begin` on become.
void Draw(const Network& network, int64_t begin, int64_t count, int32_t* out) {
  const auto permute = GRACE_CHOOSE(Permute);
  const uint32_t a = static_cast<uint32_t>(network.a), b = static_cast<uint32_t>(network.b);
  uint32_t l[kAtOnce], r[kAtOnce];
  uint32_t left = static_cast<uint32_t>(begin / b), right = static_cast<uint32_t>(begin % b);
  for (int64_t i = 0; i < count; ++i) {
    l[i] = left;
    r[i] = right;
    if (++right == b) {
      right = 0;
      ++left;
    }
  }
  permute(network.table.data(), network.rounds, a, b, count, l, r);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t number = uint64_t{l[i]} * b + r[i];
    while (number >= static_cast<uint64_t>(network.n)) {
      permute(network.table.data(), network.rounds, a, b, 1, l + i, r + i);
      number = uint64_t{l[i]} * b + r[i];
    }
    out[i] = static_cast<int32_t>(number);
  }
}

// Sorts k numbers below n, digit by digit from the lowest: in O(k).
void Sort(int64_t n, int64_t k, int32_t* numbers) {
  constexpr int64_t kWorthDigits = 256;
  if (k < kWorthDigits) {
    std::sort(numbers, numbers + k);
    return;
  }
  const int bits = 64 - __builtin_clzll(n), passes = static_cast<int>(CeilDiv(bits, 11));
  const int width = static_cast<int>(CeilDiv(bits, passes));
  const int32_t mask = (1 << width) - 1;
  std::vector<int32_t> other(k), starts(int64_t{1} << width);
  int32_t *from = numbers, *to = other.data();
  for (int low = 0; low < passes * width; low += width) {
    std::fill(starts.begin(), starts.end(), 0);
    for (int64_t i = 0; i < k; ++i) ++starts[from[i] >> low & mask];
    int32_t start = 0;
    for (int32_t& count : starts) start += std::exchange(count, start);
    for (int64_t i = 0; i < k; ++i) to[starts[from[i] >> low & mask]++] = from[i];
    std::swap(from, to);
  }
  if (from != numbers) std::copy_n(from, k, numbers);
}

// The RandomIndices of all tensors, one tensor after another.
std::vector<int32_t> AllIndices(const Executor& executor, const std::vector<int64_t>& lengths,
                                const std::vector<PhiloxKey>& keys,
                                const std::vector<int64_t>& offsets) {
  std::vector<int32_t> indices(offsets.back());
  constexpr int64_t kLarge = 1 << 22;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] <= kLarge) continue;
    RandomIndices(executor, keys[i], lengths[i], offsets[i + 1] - offsets[i],
                  indices.data() + offsets[i]);
  }
  executor.For(lengths.size(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (lengths[i] > kLarge) continue;
      RandomIndices(Serial(), keys[i], lengths[i], offsets[i + 1] - offsets[i],
                    indices.data() + offsets[i]);
    }
  });
  return indices;
}

}  // namespace

void RandomIndices(const Executor& executor, const PhiloxKey& key, int64_t n, int64_t k,
                   int32_t* indices) {
  if (k == 0) return;
  const Network network(key, n);
  executor.For(CeilDiv(k, kAtOnce), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = kAtOnce * i;
      Draw(network, first, std::min(kAtOnce, k - first), indices + first);
    }
  });
  Sort(n, k, indices);
}

bool RandomKList(const Executor& executor, const std::vector<EncodeInput>& sources,
                 float multiplier, const std::vector<PhiloxKey>& keys,
                 const std::vector<int64_t>& ks, float* values) {
  const ListLoop loop = LoopOver(sources);
  const std::vector<int64_t> lengths = Lengths(sources);
  const std::vector<int64_t> offsets = Offsets(ks);
  const std::vector<int32_t> indices = AllIndices(executor, lengths, keys, offsets);
  const Compensate compensate = ChooseCompensate();
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, kLines, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    const int32_t* stop = indices.data() + offsets[t + 1];
    const int32_t* next = std::lower_bound(indices.data() + offsets[t], stop, first);
    const bool finite =
        EncodePiece(sources[t], multiplier, compensate, first, last, bypass,
                    [&](int64_t begin, int64_t count, const float* acc, float* writable) {
                      for (; next < stop && *next < begin + count; ++next) {
                        const float value = acc[*next - begin];
                        values[next - indices.data()] = value;
                        // A zero is sent as +0, so that it stays what it is.
                        if (writable && BitsOf(value) & kMagnitude)
                          writable[*next - begin] = value - value;
                      }
                    });
    if (!finite) all = false;
  });
  return all;
}

bool ScatterRandomList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                       const std::vector<PhiloxKey>& keys, const std::vector<int64_t>& ks,
                       const std::vector<float>& scales, const float* values, float factor) {
  const std::vector<int64_t> lengths = Lengths(targets);
  const std::vector<int64_t> offsets = Offsets(ks);
  const std::vector<int32_t> indices = AllIndices(executor, lengths, keys, offsets);
  std::vector<float> scaled;
  if (!scales.empty()) {
    const DenormalsAreZero scope;
    scaled.resize(offsets.back());
    for (size_t i = 0; i < ks.size(); ++i) {
      for (int64_t j = offsets[i]; j < offsets[i + 1]; ++j) scaled[j] = values[j] * scales[i];
    }
    values = scaled.data();
  }
  bool finite = true;
  ScatterList(executor, targets, {values, indices.data(), nullptr, 1, ks}, factor, &finite);
  return finite;
}

}  // namespace grace
