// Scales and checks the sums of all workers, once they are complete.
#pragma once

#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/cuda.h"

namespace grace {

// Writes sum * factor for the first n elements of a piece, which begins at `total`. Makes `finite`
// false where one of them is not.
__device__ inline void StoreTotals(const float* sum, float factor, int64_t n, float* total,
                                   bool* finite) {
  float totals[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    totals[j] = MulZ(sum[j], factor);
    if (PlaceOf(j) < n) total[PlaceOf(j)] = totals[j];
  }
  NotePiece(totals, n, finite);
}

}  // namespace grace
