// How: one pass counts the elements of each bin, and sums the lower halves of their bits, in one
// word a bin, whose counts and sums add up to the same in any order. From these come the table from
// bins to ids and the means; a second pass writes ids and residuals. A tensor that one piece of
// work holds goes through both while it is in the cache.
#include "kernels/codes/quantiles.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/base/dispatch.h"
#include "kernels/codes/quantile_bins.h"

#define GRACE_KERNEL "kernels/codes/quantiles-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

thread_local Counting t_counting;

using Numbers = void (*)(const float* x, const float* residual, float multiplier, int64_t n,
                         uint32_t* bits, Bounds* bounds);

class QuantileEncoder {
 public:
  QuantileEncoder(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, Quantiles quantiles, uint32_t* words, float* means)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        quantiles_(quantiles),
        bits_(IdBits(quantiles.buckets)),
        means_(means),
        bypass_(TooLargeToCache(LoopOver(sources).total())),
        merged_(sources.size()) {
    for (const EncodeInput& source : sources) {
      words_.push_back(words);
      words += PackedWords(source.n, bits_);
    }
  }

  bool Run() {
    std::vector<size_t> large;
    std::vector<EncodeInput> longer;
    for (size_t i = 0; i < sources_.size(); ++i) {
      // The loops below skip empty tensors.
      if (sources_[i].n == 0) std::fill_n(Means(i), quantiles_.buckets, 0.0f);
      if (sources_[i].n <= kGrain) continue;
      merged_[i] = std::make_unique<Merged>();
      large.push_back(i);
      longer.push_back(sources_[i]);
    }
    std::atomic<bool> finite{true};
    const auto whole = [&](size_t i, int64_t element) {
      return merged_[i] ? CeilDiv(element, kGroup) * kGroup : sources_[i].n;
    };
    LoopOver(sources_).For(executor_, whole, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      Counting& counting = t_counting;
      if (merged_[i]) {
        for (; begin < end; begin += kGrain) {
          Count(i, begin, std::min(end, begin + kGrain), &counting);
          merged_[i]->Add(&counting);
        }
        return;
      }
      static thread_local Table table;
      Count(i, begin, end, &counting);
      Assign(BinsOf(&counting), quantiles_, table.data(), Means(i));
      if (!Encode(i, begin, end, table.data())) finite = false;
    });
    executor_.For(large.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        Merged& own = *merged_[large[j]];
        Assign(own.Bins(), quantiles_, own.table.data(), Means(large[j]));
      }
    });
    LoopOver(longer).For(executor_, CutAt{kGroup}, [&](size_t j, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      const size_t i = large[j];
      if (!Encode(i, begin, end, merged_[i]->table.data())) finite = false;
    });
    return finite;
  }

 private:
  float* Means(size_t i) const { return means_ + i * quantiles_.buckets; }

  void Count(size_t i, int64_t first, int64_t last, Counting* counting) const {
    const EncodeInput& source = sources_[i];
    const float* const residual = source.residual;
    const auto numbers =
        multiplier_ == 1.0f ? (residual ? plus_ : plain_) : (residual ? times_plus_ : times_);
    alignas(64) uint32_t bits[kChunk];
    uint64_t* const words = counting->words.data();
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      numbers(source.x + begin, residual ? residual + begin : nullptr, multiplier_, count, bits,
              &counting->bounds);
      int64_t j = 0;
      for (; j + 2 <= count; j += 2) {
        uint64_t two;  // elements at once, for one load less
        std::memcpy(&two, bits + j, sizeof two);
        words[two >> 16 & 0xffff] += kOne + (two & 0xffff);
        words[two >> 48] += kOne + (two >> 32 & 0xffff);
      }
      if (j < count) words[bits[j] >> 16] += kOne + (bits[j] & 0xffff);
    }
  }

  // Ids and residual of a stretch; whether it is finite.
  bool Encode(size_t i, int64_t first, int64_t last, const uint8_t* table) const {
    const bool finite =
        EncodePiece(sources_[i], multiplier_, compensate_, first, last, bypass_,
                    [&](int64_t begin, int64_t count, const float* acc, float* residual_out) {
                      alignas(64) uint32_t bits[kChunk];
                      alignas(64) uint8_t ids[kChunk];
                      alignas(64) uint32_t words[kChunk / kGroup * 8];
                      numbers_(acc, count, bits);
                      ids_(bits, count, table, ids);
                      if (residual_out) take_(ids, count, Means(i), residual_out);
                      const int64_t groups = CeilDiv(count, kGroup);
                      std::fill(ids + count, ids + groups * kGroup, uint8_t{0});
                      pack_(ids, groups, bits_, words);
                      Store(words, 4 * groups * bits_, bypass_, words_[i] + begin / kGroup * bits_);
                    });
    EndStores(bypass_);
    return finite;
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const Quantiles quantiles_;
  const int32_t bits_;
  float* const means_;
  const bool bypass_;
  std::vector<uint32_t*> words_;
  std::vector<std::unique_ptr<Merged>> merged_;  // of tensors longer than a piece
  const Compensate compensate_ = ChooseCompensate();
  void (*const numbers_)(const float*, int64_t, uint32_t*) = GRACE_CHOOSE(NumbersOf);
  const Numbers plain_ = GRACE_CHOOSE(NumbersOfAcc<false, false>);
  const Numbers plus_ = GRACE_CHOOSE(NumbersOfAcc<false, true>);
  const Numbers times_ = GRACE_CHOOSE(NumbersOfAcc<true, false>);
  const Numbers times_plus_ = GRACE_CHOOSE(NumbersOfAcc<true, true>);
  void (*const ids_)(const uint32_t*, int64_t, const uint8_t*, uint8_t*) = GRACE_CHOOSE(IdsOf);
  void (*const take_)(const uint8_t*, int64_t, const float*, float*) = GRACE_CHOOSE(TakeMeans);
  void (*const pack_)(const uint8_t*, int64_t, int32_t, uint32_t*) = GRACE_CHOOSE(PackIds);
};

}  // namespace

bool EncodeQuantiles(const Executor& executor, const std::vector<EncodeInput>& sources,
                     float multiplier, Quantiles quantiles, uint32_t* words, float* means) {
  return QuantileEncoder(executor, sources, multiplier, quantiles, words, means).Run();
}

bool DecodeQuantiles(const Executor& executor, const std::vector<DecodeOutput>& targets,
                     const QuantileRows& rows, int32_t buckets, float factor) {
  const auto unpack = GRACE_CHOOSE(UnpackIds);
  const auto first = GRACE_CHOOSE(AddMeans<true>), next = GRACE_CHOOSE(AddMeans<false>);
  const Compensate times = ChooseCompensate();
  const int32_t bits = IdBits(buckets);
  const int64_t ids = int64_t{1} << bits, tensors = targets.size();
  const std::vector<int64_t> places =
      Offsets(targets, [=](int64_t n) { return PackedWords(n, bits); });
  // Of each worker and tensor a mean for every id, the last for those beyond.
  std::vector<float> means(rows.workers * tensors * ids);
  for (int64_t i = 0; i < rows.workers * tensors; ++i) {
    const float* own = rows.means + i * buckets;
    float* all = means.data() + i * ids;
    for (int64_t id = 0; id < ids; ++id) {
      all[id] = Flush(own[std::min<int64_t>(id, buckets - 1)]);
    }
  }
  return DecodeChunks(
      executor, targets, CutAt{kGroup}, [&](size_t t, int64_t begin, int64_t count, float* sums) {
        alignas(64) uint8_t own[kChunk];
        for (int64_t w = 0; w < rows.workers; ++w) {
          const uint32_t* words = rows.words + w * places.back() + places[t];
          unpack(words + PackedWords(begin, bits), CeilDiv(count, kGroup), bits, own);
          (w ? next : first)(own, count, means.data() + (w * tensors + t) * ids, sums);
        }
        return times(sums, nullptr, factor, count, sums);
      });
}

}  // namespace grace
