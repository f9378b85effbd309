// Cells: the elements of a tensor that share levels, and where these levels are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/words.h"

namespace grace {

// A cell is a block of consecutive elements, a whole tensor, or a column of it.
struct Cells {
  int64_t block;    // elements that share levels, a power of two of at least kGroup; 0: all
  int64_t columns;  // above 1: every column has levels instead, as many as this

  // The cells of a tensor of n elements.
  int64_t Count(int64_t n) const {
    return columns > 1 ? columns : block ? CeilDiv(n, block) : n > 0;
  }

  // Whether a chunk lies in one cell, and the cell of its first element.
  bool OneForChunk() const { return columns <= 1 && (block == 0 || block >= kChunk); }
  int64_t Of(int64_t element) const { return block ? element / block : 0; }

  // The levels of n elements from `at` on, one for each: `levels` are the tensor's.
  void Spread(const float* levels, int64_t at, int64_t n, float* out) const {
    for (int64_t i = 0, run; i < n; i += run) {
      if (columns > 1) {
        const int64_t column = (at + i) % columns;
        run = std::min(n - i, columns - column);
        std::copy_n(levels + column, run, out + i);
      } else {
        run = std::min(n - i, block - (at + i) % block);
        std::fill_n(out + i, run, levels[(at + i) / block]);
      }
    }
  }
};

}  // namespace grace
