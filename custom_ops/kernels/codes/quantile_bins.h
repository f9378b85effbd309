// The bins that the encoder of quantiles.h counts, and the buckets that it makes of them.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/codes/quantiles.h"

namespace grace {

constexpr uint32_t kNegative = kBins / 2;  // the first negative bin; bin 0 is that of zeros
// A word of a histogram: the count above, the sum of lower halves below, of at most 2^24 elements.
constexpr int kSumBits = 40;
constexpr uint64_t kOne = uint64_t{1} << kSumBits;

using Table = std::array<uint8_t, kBins>;  // the id of each bin

// The least and the largest magnitude, as bits, of numbers that are not zero.
struct Bounds {
  uint32_t least = kMagnitude, largest = 0;
};

inline int64_t RowOf(uint32_t magnitude) { return magnitude >> 23; }

// The histogram of one thread: zero but while it counts.
struct Counting {
  alignas(64) std::array<uint64_t, kBins> words;
  Bounds bounds;

  // Calls visit(row, its words) of each row that may have elements, in order, and makes it zero.
  // Whatever visit throws, all is zero after it: the thread's next tensor counts from zero.
  template <class Visit>
  void Take(const Visit& visit) {
    try {
      TakeRows(visit);
    } catch (...) {
      words.fill(0);
      bounds = Bounds();
      throw;
    }
  }

 private:
  template <class Visit>
  void TakeRows(const Visit& visit) {
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

// A bin with elements.
struct Bin {
  uint32_t number;
  int64_t count;
  int64_t sum;  // of the 24-bit significands
  int32_t exponent() const { return number >> 7 & 0xff; }
};

// What all threads counted of a tensor too long for one piece.
struct Merged {
  struct Row {
    std::array<int64_t, kRow> counts{}, sums{};
  };
  std::mutex mutex;
  std::array<std::unique_ptr<Row>, kRows> rows;
  Table table;

  void Add(Counting* counting);
  std::vector<Bin> Bins() const;
};

// The bins with elements, in the order of their numbers; makes the histogram zero.
std::vector<Bin> BinsOf(Counting* counting);

// Writes the id of each of these bins to the table, and the means.
void Assign(const std::vector<Bin>& bins, Quantiles quantiles, uint8_t* table, float* means);

}  // namespace grace
