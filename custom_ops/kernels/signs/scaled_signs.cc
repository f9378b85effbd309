#include "kernels/signs/scaled_signs.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "kernels/signs/signs.h"

#define GRACE_KERNEL "kernels/signs/scaled_signs-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// Where pieces of tensors begin: with a chunk of every sum.
constexpr CutAt kChunks{kChunk};

// Tensors that together have this many elements take both passes before the next ones do, so that
// the second finds them in the last cache.
constexpr int64_t kTogether = 1 << 20;

// Of some elements of a cell.
struct Sums {
  double low = 0.0, high = 0.0;
  int64_t lows = 0;
};

float LevelOf(double mean) {
  return std::fabs(mean) < static_cast<double>(kSmallestScale) ? 0.0f : static_cast<float>(mean);
}

// The total of `count` sums, padded with zeros to a power of two; overwrites `sums`.
Sums Joined(Sums* sums, int64_t count) {
  int64_t half = 1;
  while (2 * half < count) half *= 2;
  for (; count > 1; count = half, half /= 2) {
    for (int64_t i = half; i < count; ++i) {
      sums[i - half].low += sums[i].low;
      sums[i - half].high += sums[i].high;
      sums[i - half].lows += sums[i].lows;
    }
  }
  return sums[0];
}

// One tensor's columns [first, first + width) of rows [row, row + rows).
struct Patch {
  size_t tensor;
  int64_t row, rows, first, width;
};

class Encoder {
 public:
  Encoder(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
          const std::vector<Cells>& cells, const std::vector<ScaledSigns>& parts, bool bypass)
      : executor_(executor),
        sources_(sources),
        multiplier_(multiplier),
        cells_(cells),
        parts_(parts),
        bypass_(bypass) {}

  bool Run() {
    const auto columns = [this](size_t i) { return cells_[i].columns > 1; };
    const auto small = [&, this](size_t i) {
      return !columns(i) && cells_[i].block && cells_[i].block <= kChunk;
    };
    const auto large = [&](size_t i) { return !columns(i) && !small(i); };
    // What needs one pass, then first and second passes of the rest.
    Visit(small, true, [this](size_t i, int64_t at, int64_t n, const float* acc, float* rest) {
      const int64_t block = cells_[i].block;
      Pack(i, at, n, acc);
      for (int64_t b = 0; b < n; b += block) {
        const int64_t own = std::min(block, n - b), cell = (at + b) / block;
        SetLevels(i, cell, SumsOf(i, at + b, own, acc + b), own);
        if (rest) Subtract(i, cell, own, rest + b);
      }
    });
    partial_.resize(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (large(i)) partial_[i].resize(CeilDiv(sources_[i].n, kChunk));
    }
    Visit(large, false, [this](size_t i, int64_t at, int64_t n, const float* acc, float*) {
      Pack(i, at, n, acc);
      partial_[i][at / kChunk] = SumsOf(i, at, n, acc);
    });
    JoinChunks();
    SumAllColumns();
    Visit(columns, true, [this](size_t i, int64_t at, int64_t n, const float* acc, float* rest) {
      Pack(i, at, n, acc);
      if (rest) SubtractEach(i, at, n, rest);
    });
    if (!sources_[0].residual_out) return finite_;
    Visit(large, true, [this](size_t i, int64_t at, int64_t n, const float*, float* rest) {
      Subtract(i, cells_[i].Of(at), n, rest);
    });
    return finite_;
  }

 private:
  // Calls body(tensor, at, n, acc, rest) for the chunks of the chosen tensors. `rest` is acc if the
  // tensor keeps something and `keeps` says that it is written now, else null.
  template <class Chosen, class Body>
  void Visit(const Chosen& chosen, bool keeps, const Body& body) {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < sources_.size(); ++i) sizes.push_back(chosen(i) ? sources_[i].n : 0);
    const Compensate compensate = ChooseCompensate();
    ListLoop(sizes).For(executor_, kChunks, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      EncodeInput source = sources_[i];
      if (!keeps) source.residual_out = nullptr;
      const bool finite = EncodePiece(
          source, multiplier_, compensate, begin, end, bypass_,
          [&](int64_t at, int64_t n, const float* acc, float* rest) { body(i, at, n, acc, rest); });
      if (!finite) finite_.store(false, std::memory_order_relaxed);
    });
  }

  void Pack(size_t i, int64_t at, int64_t n, const float* acc) const {
    PackSigns(Serial(), acc, n, parts_[i].words + at / kGroup);
  }

  // Of elements of one cell, at most kChunk, which are packed already.
  Sums SumsOf(size_t i, int64_t at, int64_t n, const float* acc) const {
    Sums sums;
    if (!parts_[i].low) {
      sums.high = sum_magnitudes_(acc, n);
      return sums;
    }
    const uint32_t* words = parts_[i].words + at / kGroup;
    sums.low = sum_side_(acc, n, false);
    sums.high = sum_side_(acc, n, true);
    sums.lows = n;
    for (int64_t g = 0; g < CeilDiv(n, kGroup); ++g) sums.lows -= __builtin_popcount(words[g]);
    return sums;
  }

  // The levels of a cell of n elements.
  void SetLevels(size_t i, int64_t cell, const Sums& sums, int64_t n) const {
    const ScaledSigns& parts = parts_[i];
    if (!parts.low) {
      parts.high[cell] = LevelOf(sums.high * (1.0 / static_cast<double>(n)));
      return;
    }
    const auto mean = [](double sum, int64_t count) {
      return LevelOf(sum / static_cast<double>(std::max<int64_t>(count, 1)));
    };
    parts.low[cell] = mean(sums.low, sums.lows);
    parts.high[cell] = mean(sums.high, n - sums.lows);
  }

  void JoinChunks() {
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (partial_[i].empty()) continue;
      const int64_t n = sources_[i].n, block = cells_[i].block ? cells_[i].block : n;
      for (int64_t at = 0; at < n; at += block) {
        const int64_t own = std::min(block, n - at);
        const Sums sums = Joined(partial_[i].data() + at / kChunk, CeilDiv(own, kChunk));
        SetLevels(i, at / block, sums, own);
      }
    }
  }

  // The sums of every column of one tensor, for one chunk of rows after another.
  struct Columns {
    std::vector<double> low, high;
    std::vector<int32_t> lows;
  };

  void SumAllColumns() {
    std::vector<Columns> all(sources_.size());
    std::vector<Patch> patches;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const int64_t columns = cells_[i].columns;
      if (columns <= 1) continue;
      const int64_t rows = sources_[i].n / columns, size = CeilDiv(rows, kColumnRows) * columns;
      all[i].high.resize(size);
      all[i].lows.resize(size);
      if (parts_[i].low) all[i].low.resize(size);
      for (int64_t row = 0; row < rows; row += kColumnRows) {
        for (int64_t j = 0; j < columns; j += kStrip) {
          patches.push_back(
              {i, row, std::min(kColumnRows, rows - row), j, std::min(kStrip, columns - j)});
        }
      }
    }
    executor_.For(patches.size(), kGrain / kChunk, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t p = begin; p < end; ++p) SumPatch(patches[p], all[patches[p].tensor]);
    });
    executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (cells_[i].columns > 1) JoinColumns(i, all[i]);
      }
    });
  }

  void SumPatch(const Patch& patch, Columns& sums) {
    alignas(64) float acc[kChunk];
    const EncodeInput& source = sources_[patch.tensor];
    const int64_t columns = cells_[patch.tensor].columns;
    for (int64_t r = 0; r < patch.rows; ++r) {
      const int64_t at = (patch.row + r) * columns + patch.first;
      const float* residual = source.residual ? source.residual + at : nullptr;
      float* out = acc + r * patch.width;
      // What is not finite is seen in the second pass.
      if (!residual && multiplier_ == 1.0f) {
        std::copy_n(source.x + at, patch.width, out);
      } else {
        compensate_(source.x + at, residual, multiplier_, patch.width, out);
      }
    }
    const int64_t at = patch.row / kColumnRows * columns + patch.first;
    sum_columns_(acc, patch.rows, patch.width, sums.low.empty() ? nullptr : &sums.low[at],
                 &sums.high[at], &sums.lows[at]);
  }

  void JoinColumns(size_t i, Columns& sums) const {
    const int64_t columns = cells_[i].columns, rows = sources_[i].n / columns;
    int64_t count = CeilDiv(rows, kColumnRows), half = 1;
    while (2 * half < count) half *= 2;
    for (; count > 1; count = half, half /= 2) {
      const int64_t from = half * columns, n = (count - half) * columns;
      if (!sums.low.empty()) add_(&sums.low[from], n, sums.low.data());
      add_(&sums.high[from], n, sums.high.data());
      for (int64_t j = 0; j < n; ++j) sums.lows[j] += sums.lows[from + j];
    }
    // The levels of an empty tensor's columns are 0.
    for (int64_t j = 0; j < columns && rows == 0; ++j) SetLevels(i, j, {}, 1);
    for (int64_t j = 0; j < columns && rows > 0; ++j) {
      SetLevels(i, j, {sums.low.empty() ? 0.0 : sums.low[j], sums.high[j], sums.lows[j]}, rows);
    }
  }

  void Subtract(size_t i, int64_t cell, int64_t n, float* acc) const {
    const ScaledSigns& parts = parts_[i];
    const float low = parts.low ? parts.low[cell] : 0.0f - parts.high[cell];
    take_out_(&low, &parts.high[cell], n, acc);
  }

  void SubtractEach(size_t i, int64_t at, int64_t n, float* acc) const {
    alignas(64) float low[kChunk], high[kChunk];
    cells_[i].Spread(parts_[i].high, at, n, high);
    if (parts_[i].low) {
      cells_[i].Spread(parts_[i].low, at, n, low);
    } else {
      for (int64_t k = 0; k < n; ++k) low[k] = 0.0f - high[k];
    }
    take_out_each_(low, high, n, acc);
  }

  const Executor& executor_;
  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const std::vector<Cells>& cells_;
  const std::vector<ScaledSigns>& parts_;
  const bool bypass_;
  std::vector<std::vector<Sums>> partial_;
  std::atomic<bool> finite_{true};
  const Compensate compensate_ = ChooseCompensate();
  decltype(&generic::SumMagnitudes) sum_magnitudes_ = GRACE_CHOOSE(SumMagnitudes);
  decltype(&generic::SumSide) sum_side_ = GRACE_CHOOSE(SumSide);
  decltype(&generic::SumColumns) sum_columns_ = GRACE_CHOOSE(SumColumns);
  decltype(&generic::AddDoubles) add_ = GRACE_CHOOSE(AddDoubles);
  decltype(&generic::TakeOut<true>) take_out_ = GRACE_CHOOSE(TakeOut<true>);
  decltype(&generic::TakeOut<false>) take_out_each_ = GRACE_CHOOSE(TakeOut<false>);
};

}  // namespace

bool ScaledSignList(const Executor& executor, const std::vector<EncodeInput>& sources,
                    float multiplier, const std::vector<Cells>& cells,
                    const std::vector<ScaledSigns>& parts) {
  const bool bypass = TooLargeToCache(LoopOver(sources).total());
  bool finite = true;
  for (size_t first = 0, last = 0; first < sources.size(); first = last) {
    int64_t elements = 0;
    do {
      elements += sources[last++].n;
    } while (last < sources.size() && elements + sources[last].n <= kTogether);
    const auto some = [first, last](const auto& all) {
      return std::decay_t<decltype(all)>(all.begin() + first, all.begin() + last);
    };
    const auto own = some(sources);
    const auto own_cells = some(cells);
    const auto own_parts = some(parts);
    finite &= Encoder(executor, own, multiplier, own_cells, own_parts, bypass).Run();
  }
  return finite;
}

}  // namespace grace
