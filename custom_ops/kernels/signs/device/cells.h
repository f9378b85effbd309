// Finds the cell of an element, as defined in cells.h.
#pragma once

#include "kernels/base/device/cuda.h"
#include "kernels/signs/cells.h"

namespace grace {

// log2 of a power of two.
inline int32_t LogOf(int64_t power) {
  int32_t log = 0;
  while (int64_t{1} << log < power) ++log;
  return log;
}

// The cells of a tensor: columns if they are more than 1, else blocks of 2^log elements.
struct DeviceCells {
  int64_t columns;
  int32_t log, unused;

  static DeviceCells From(const Cells& cells) {
    return {cells.columns, cells.block ? LogOf(cells.block) : 62, 0};
  }
};

// The cells of a piece, which begins at element `begin`. A division of 64 bits takes long: there is
// one for all elements.
class PieceCells {
 public:
  __device__ PieceCells(const DeviceCells& cells, int64_t begin)
      : cells_(cells), base_(cells.columns > 1 ? begin % cells.columns : begin) {}

  // Of element begin + offset, offset < kChunk.
  __device__ int64_t Of(int offset) const {
    const int64_t at = base_ + offset;
    if (cells_.columns <= 1) return at >> cells_.log;
    if (cells_.columns >= kChunk) return at < cells_.columns ? at : at - cells_.columns;
    return static_cast<uint32_t>(at) % static_cast<uint32_t>(cells_.columns);
  }

 private:
  const DeviceCells cells_;
  const int64_t base_;
};

}  // namespace grace
