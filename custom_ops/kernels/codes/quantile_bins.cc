#include "kernels/codes/quantile_bins.h"

#include <algorithm>

namespace grace {
namespace {

// Appends the bins of a row that have elements. The loop has no branch, since the processor could
// not predict it.
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
  const Bin* own = first;                     // the first bin of the bucket
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

}  // namespace

void Merged::Add(Counting* counting) {
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

std::vector<Bin> Merged::Bins() const {
  std::vector<Bin> bins;
  for (int64_t row = 0; row < kRows; ++row) {
    if (rows[row]) AppendBins(row, rows[row]->counts.data(), rows[row]->sums.data(), &bins);
  }
  return bins;
}

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

void Assign(const std::vector<Bin>& bins, Quantiles quantiles, uint8_t* table, float* means) {
  std::fill_n(means, quantiles.buckets, 0.0f);
  const Bin* begin = bins.data();
  const Bin* const end = begin + bins.size();
  const bool zeros = begin < end && begin->number == 0;
  const Bin* const positive = begin + zeros;
  const Bin* const negative =
      std::partition_point(positive, end, [](const Bin& bin) { return bin.number < kNegative; });
  int64_t positives = 0, negatives = 0;
  for (const Bin* bin = positive; bin < negative; ++bin) positives += bin->count;
  for (const Bin* bin = negative; bin < end; ++bin) negatives += bin->count;
  const int64_t span = quantiles.span, runs = quantiles.buckets / span;
  const int64_t all = std::max<int64_t>(positives + negatives, 1);
  const int64_t others = CeilDiv(int64_t{zeros} + (positives > 0), span);
  const int64_t share = (2 * runs * negatives + all) / (2 * all);
  const int64_t size = span * std::min(std::max(share, int64_t{negatives > 0}), runs - others);
  Spread(negative, end, 0, size, table, means);
  if (zeros) table[0] = static_cast<uint8_t>(size);
  Spread(positive, negative, size + zeros, quantiles.buckets - size - zeros, table, means);
}

}  // namespace grace
