#include "kernels/signs/signs.h"

#include <algorithm>

#include "kernels/base/list.h"
#include "kernels/base/words.h"

#define GRACE_KERNEL "kernels/signs/signs-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

using PackFunction = decltype(&generic::Pack);
using ExpandFunction = decltype(&generic::Expand);

// n elements from the beginning of a group on, the last group perhaps incomplete.
void PackRange(PackFunction pack, const float* x, int64_t n, uint32_t* words) {
  const int64_t whole = n / kGroup, rest = n % kGroup;
  pack(x, whole, words);
  if (rest == 0) return;
  float last[kGroup];
  std::fill(last, last + kGroup, -1.0f);
  std::copy(x + n - rest, x + n, last);
  pack(last, 1, words + whole);
}

// Likewise.
void ExpandRange(ExpandFunction expand, const uint32_t* positive, const uint32_t* tie, int64_t n,
                 float one, float* out) {
  const int64_t whole = n / kGroup, rest = n % kGroup;
  expand(positive, tie, whole, one, out);
  if (rest == 0) return;
  float last[kGroup];
  expand(positive + whole, tie ? tie + whole : nullptr, 1, one, last);
  std::copy(last, last + rest, out + kGroup * whole);
}

}  // namespace

void PackSigns(const Executor& executor, const float* x, int64_t n, uint32_t* words) {
  const PackFunction pack = GRACE_CHOOSE(Pack);
  executor.For(n, kGrain, [=](int64_t begin, int64_t end) {
    PackRange(pack, x + begin, end - begin, words + begin / kGroup);
  });
}

namespace {

// One counter for each bit of some words: plane p holds bit p of the counters, so that adding a
// worker's words is a chain of half adders, each on many words at a time.
class Tally {
 public:
  static constexpr int64_t kWords = 64;

  // `planes` must be enough for the number of words that will be added.
  explicit Tally(int planes) : used_(planes) { std::fill_n(planes_[0], used_ * kWords, 0u); }

  void Add(const uint32_t* words, int64_t count) {
    uint32_t carry[kWords] = {};
    std::copy(words, words + count, carry);
    for (int p = 0; p < used_; ++p) {
      for (int64_t g = 0; g < kWords; ++g) {
        const uint32_t next = planes_[p][g] & carry[g];
        planes_[p][g] ^= carry[g];
        carry[g] = next;
      }
    }
  }

  // Sets the bits of the counters above, and of those equal to, `value`.
  void Compare(uint32_t value, uint32_t* above, uint32_t* equal) const {
    std::fill_n(above, kWords, 0u);
    std::fill_n(equal, kWords, 0xffffffffu);
    for (int p = used_ - 1; p >= 0; --p) {
      const uint32_t bit = (value >> p & 1) ? 0xffffffffu : 0u;
      for (int64_t g = 0; g < kWords; ++g) {
        above[g] |= equal[g] & planes_[p][g] & ~bit;
        equal[g] &= ~(planes_[p][g] ^ bit);
      }
    }
  }

 private:
  static constexpr int kMost = 32;
  int used_;
  uint32_t planes_[kMost][kWords];
};

}  // namespace

bool PackSignsList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, uint32_t* words) {
  const PackFunction pack = GRACE_CHOOSE(Pack);
  const std::vector<int64_t> offsets = Offsets(sources, SignWords);
  return EncodeChunks(executor, sources, multiplier, CutAt{kGroup},
                      [&](size_t i, int64_t at, int64_t n, const float* acc, float*, bool) {
                        PackRange(pack, acc, n, words + offsets[i] + at / kGroup);
                      });
}

void VoteSignsList(const Executor& executor, const uint32_t* words, int64_t workers,
                   const std::vector<DecodeOutput>& targets, float factor) {
  const ExpandFunction expand = GRACE_CHOOSE(Expand);
  const std::vector<int64_t> offsets = Offsets(targets, SignWords);
  const uint32_t half = static_cast<uint32_t>(workers / 2);
  int planes = 1;
  while (workers >> planes) ++planes;
  LoopOver(targets).For(executor, CutAt{kGroup}, [&](size_t i, int64_t begin, int64_t end) {
    constexpr int64_t kAtOnce = Tally::kWords * kGroup;
    uint32_t above[Tally::kWords], tie[Tally::kWords];
    const DenormalsAreZero scope;
    for (int64_t at = begin; at < end; at += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - at);
      Tally tally(planes);
      const uint32_t* own = words + offsets[i] + at / kGroup;
      for (int64_t w = 0; w < workers; ++w)
        tally.Add(own + w * offsets.back(), CeilDiv(count, kGroup));
      tally.Compare(half, above, tie);
      ExpandRange(expand, above, workers % 2 ? nullptr : tie, count, factor, targets[i].total + at);
    }
  });
}

}  // namespace grace
