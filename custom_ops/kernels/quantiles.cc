// How: one pass counts the elements of each bin, and sums the lower halves of their bits, in one
// word a bin, whose counts and sums add up to the same in any order. From these come the table from
// bins to ids and the means; a second pass writes ids and residuals. A tensor that one piece of work
// holds goes through both while it is in the cache.
#include "quantiles.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>

#include "dispatch.h"

namespace grace {

// The least and the largest magnitude, as bits, of numbers that are not zero.
struct Bounds {
  uint32_t least = kMagnitude, largest = 0;
};

}  // namespace grace

#define GRACE_KERNEL "each/quantiles.h"
#include "each_isa.h"

namespace grace {
namespace {

constexpr int64_t kBins = 1 << 16;
// The bins of one exponent and sign: what is counted together is looked through together.
constexpr int64_t kRow = 128, kRows = kBins / kRow;
constexpr uint32_t kNegative = kBins / 2;  // the first negative bin; bin 0 is that of zeros
// A word of a histogram: the count above, the sum of lower halves below, of at most 2^24 elements.
constexpr int kSumBits = 40;
constexpr uint64_t kOne = uint64_t{1} << kSumBits;

using Table = std::array<uint8_t, kBins>;

int64_t RowOf(uint32_t magnitude) { return magnitude >> 23; }

// The histogram of one thread: zero but while it counts.
struct Counting {
  alignas(64) std::array<uint64_t, kBins> words;
  Bounds bounds;

  // Calls visit(row, its words) of each row that may have elements, in order, and makes it zero.
  template <class Visit>
  void Take(const Visit& visit) {
    const auto take = [&](int64_t row) {
      uint64_t* own = words.data() + row * kRow;
      visit(row, own);
      std::fill_n(own, kRow, uint64_t{0});
    };
    take(0);
    for (const int64_t side : {int64_t{0}, kRows / 2}) {
      for (int64_t row = RowOf(bounds.least); row <= RowOf(bounds.largest); ++row) take(side + row);
    }
    bounds = Bounds();
  }
};
thread_local Counting t_counting;

// A bin with elements.
struct Bin {
  uint32_t number;
  int64_t count;
  int64_t sum;  // of the 24-bit significands
  int32_t exponent() const { return number >> 7 & 0xff; }
};

// Appends the bins of a row that have elements; without branches, which nobody could predict.
void AppendBins(int64_t row, const int64_t* counts, const int64_t* sums, std::vector<Bin>* bins) {
  size_t size = bins->size();
  bins->resize(size + kRow);
  for (int64_t i = 0; i < kRow; ++i) {
    // Of each element the leading one and the upper seven bits are those of the bin.
    const int64_t upper = (128 + i) << 16;
    (*bins)[size] = {static_cast<uint32_t>(row * kRow + i), counts[i], counts[i] * upper + sums[i]};
    size += counts[i] != 0;
  }
  bins->resize(size);
}

// Of a list of tensors too long for one piece: what all threads counted.
struct Merged {
  struct Row {
    std::array<int64_t, kRow> counts{}, sums{};
  };
  std::mutex mutex;
  std::array<std::unique_ptr<Row>, kRows> rows;
  Table table;

  void Add(Counting* counting) {
    const std::lock_guard<std::mutex> lock(mutex);
    counting->Take([&](int64_t number, const uint64_t* words) {
      if (!rows[number]) rows[number] = std::make_unique<Row>();
      Row& row = *rows[number];
      for (int64_t i = 0; i < kRow; ++i) {
        row.counts[i] += words[i] >> kSumBits;
        row.sums[i] += words[i] & (kOne - 1);
      }
    });
  }

  std::vector<Bin> Bins() const {
    std::vector<Bin> bins;
    for (int64_t row = 0; row < kRows; ++row) {
      if (rows[row]) AppendBins(row, rows[row]->counts.data(), rows[row]->sums.data(), &bins);
    }
    return bins;
  }
};

std::vector<Bin> BinsOf(Counting* counting) {
  std::vector<Bin> bins;
  counting->Take([&](int64_t row, const uint64_t* words) {
    std::array<int64_t, kRow> counts, sums;
    for (int64_t i = 0; i < kRow; ++i) {
      counts[i] = words[i] >> kSumBits;
      sums[i] = words[i] & (kOne - 1);
    }
    AppendBins(row, counts.data(), sums.data(), &bins);
  });
  return bins;
}

// The mean of bins [first, last) of one sign, in order of magnitude.
float MeanOf(const Bin* first, const Bin* last) {
  const int32_t exponent = last[-1].exponent();
  int64_t sum = 0, count = 0;
  for (const Bin* bin = first; bin < last; ++bin) {
    sum += bin->sum << 7 >> std::min(exponent - bin->exponent(), 63);
    count += bin->count;
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(count);
  // 2^(exponent - 157)
  const uint64_t bits = static_cast<uint64_t>(exponent - 157 + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  const float value = static_cast<float>(mean * power);
  return last[-1].number < kNegative ? value : -value;
}

// Spreads bins [first, last) of one sign over `size` buckets from `start` on.
void Spread(const Bin* first, const Bin* last, int64_t start, int64_t size, uint8_t* table,
            float* means) {
  int64_t all = 0;
  for (const Bin* bin = first; bin < last; ++bin) all += bin->count;
  const Bin* own = first;  // the first bin of the bucket
  int64_t id = start, before = 0, end = all;  // `before` elements times `size`; id ends at `end`
  for (const Bin* bin = first; bin < last; ++bin) {
    if (before >= end) {
      means[id] = MeanOf(own, bin);
      own = bin;
      for (; before >= end; end += all) ++id;
    }
    table[bin->number] = static_cast<uint8_t>(id);
    before += bin->count * size;
  }
  if (own < last) means[id] = MeanOf(own, last);
}

// The id of each bin, and the means.
void Assign(const std::vector<Bin>& bins, Quantiles quantiles, uint8_t* table, float* means) {
  std::fill_n(means, quantiles.buckets, 0.0f);
  const Bin* begin = bins.data();
  const Bin* const end = begin + bins.size();
  const bool zeros = begin < end && begin->number == 0;
  const Bin* const positive = begin + zeros;
  const Bin* const negative = std::partition_point(
      positive, end, [](const Bin& bin) { return bin.number < kNegative; });
  int64_t positives = 0, negatives = 0;
  for (const Bin* bin = positive; bin < negative; ++bin) positives += bin->count;
  for (const Bin* bin = negative; bin < end; ++bin) negatives += bin->count;
  const int64_t span = quantiles.span, runs = quantiles.buckets / span;
  const int64_t all = std::max<int64_t>(positives + negatives, 1);
  const int64_t others = CeilDiv(int64_t{zeros} + (positives > 0), span);
  const int64_t share = (2 * runs * negatives + all) / (2 * all);
  const int64_t size =
      span * std::min(std::max(share, int64_t{negatives > 0}), runs - others);
  Spread(negative, end, 0, size, table, means);
  if (zeros) table[0] = static_cast<uint8_t>(size);
  Spread(positive, negative, size + zeros, quantiles.buckets - size - zeros, table, means);
}

using Numbers = void (*)(const float* x, const float* residual, float multiplier, int64_t n,
                         uint32_t* bits, Bounds* bounds);

class QuantileEncoder {
 public:
  QuantileEncoder(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                  Quantiles quantiles, uint32_t* words, float* means)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        quantiles_(quantiles),
        bits_(IdBits(quantiles.buckets)),
        means_(means),
        bypass_(TooLargeToCache(LoopOver(sources).total())),
        merged_(sources.size()) {
    for (const Source& source : sources) {
      words_.push_back(words);
      words += PackedWords(source.n, bits_);
    }
  }

  bool Run() {
    std::vector<size_t> large;
    std::vector<Source> longer;
    for (size_t i = 0; i < sources_.size(); ++i) {
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
    const Source& source = sources_[i];
    const float* const residual = source.residual;
    const auto numbers = multiplier_ == 1.0f ? (residual ? plus_ : plain_)
                                             : (residual ? times_plus_ : times_);
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
    const bool finite = EncodePiece(
        sources_[i], multiplier_, compensate_, first, last, bypass_,
        [&](int64_t begin, int64_t count, const float* acc, float* kept) {
          alignas(64) uint32_t bits[kChunk];
          alignas(64) uint8_t ids[kChunk];
          alignas(64) uint32_t words[kChunk / kGroup * 8];
          numbers_(acc, count, bits);
          ids_(bits, count, table, ids);
          if (kept) take_(ids, count, Means(i), kept);
          const int64_t groups = CeilDiv(count, kGroup);
          std::fill(ids + count, ids + groups * kGroup, uint8_t{0});
          pack_(ids, groups, bits_, words);
          Store(words, 4 * groups * bits_, bypass_, words_[i] + begin / kGroup * bits_);
        });
    EndStores(bypass_);
    return finite;
  }

  const Executor& executor_;
  const std::vector<Source>& sources_;
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

bool EncodeQuantiles(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                     Quantiles quantiles, uint32_t* words, float* means) {
  return QuantileEncoder(executor, sources, multiplier, quantiles, words, means).Run();
}

bool DecodeQuantiles(const Executor& executor, const std::vector<Target>& targets,
                     const QuantileRows& rows, int32_t buckets, float factor) {
  const auto unpack = GRACE_CHOOSE(UnpackIds);
  const auto first = GRACE_CHOOSE(AddMeans<true>), next = GRACE_CHOOSE(AddMeans<false>);
  const auto finish = GRACE_CHOOSE(Finish);
  const int32_t bits = IdBits(buckets);
  const int64_t ids = int64_t{1} << bits, tensors = targets.size();
  std::vector<int64_t> places{0};
  for (const Target& target : targets) {
    places.push_back(places.back() + PackedWords(target.n, bits));
  }
  // Of each worker and tensor a mean for every id, the last for those beyond.
  std::vector<float> means(rows.workers * tensors * ids);
  for (int64_t i = 0; i < rows.workers * tensors; ++i) {
    const float* own = rows.means + i * buckets;
    float* all = means.data() + i * ids;
    for (int64_t id = 0; id < ids; ++id) {
      all[id] = Flush(own[std::min<int64_t>(id, buckets - 1)]);
    }
  }
  const ListLoop loop = LoopOver(targets);
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, CutAt{kGroup}, [&](size_t t, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    alignas(64) float sums[kChunk];
    alignas(64) uint8_t own[kChunk];
    bool finite = true;
    for (; begin < end; begin += kChunk) {
      const int64_t count = std::min(kChunk, end - begin);
      for (int64_t w = 0; w < rows.workers; ++w) {
        const uint32_t* words = rows.words + w * places.back() + places[t] + begin / kGroup * bits;
        unpack(words, CeilDiv(count, kGroup), bits, own);
        (w ? next : first)(own, count, means.data() + (w * tensors + t) * ids, sums);
      }
      finite &= finish(factor, count, sums);
      Store(sums, 4 * count, bypass, targets[t].total + begin);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

}  // namespace grace
