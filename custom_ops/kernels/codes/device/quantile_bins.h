// The bins of quantile_bins.h on the device, and the buckets that come of them.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/base/device/cuda.h"
#include "kernels/codes/quantiles.h"

namespace grace {

// What a tensor's elements are counted in. A row has the bins of one sign and exponent.
struct DeviceBins {
  uint32_t* counts;
  unsigned long long* sums;  // of lower halves
  uint8_t* ids;
};

// The bits of an element, 0 for a denormal, the largest number of its sign for what is not finite.
__device__ inline uint32_t QuantileBits(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & kMagnitude;
  if (magnitude < kSmallestNormal) return 0;
  return (bits & kSignBit) | (magnitude < kInfinity ? magnitude : kInfinity - 1);
}

// A warp's row: a lane has kOwnBins neighbours.
constexpr int kOwnBins = static_cast<int>(kRow) / kWarp;
constexpr int kSideRows = static_cast<int>(kRows) / 2;
static_assert(kSideRows == kThreads);

// Calls visit(row) for the rows of this warp that are used.
template <class Visit>
__device__ void VisitRows(const bool* used, const Visit& visit) {
  for (int row = WarpOf(); row < kRows; row += kThreads / kWarp) {
    if (used[row]) visit(row);
  }
}

// How the elements of each sign share the buckets.
struct Spans {
  int64_t negatives, positives;
  int32_t zeros, size, buckets;  // size: buckets of the negative ones

  __device__ Spans(int64_t negative, int64_t zero, int64_t positive, const Quantiles& quantiles)
      : negatives(negative), positives(positive), zeros(zero > 0), buckets(quantiles.buckets) {
    const int64_t span = quantiles.span, runs = quantiles.buckets / span;
    const int64_t sum = positive + negative, all = sum > 1 ? sum : 1;
    const int64_t others = (zeros + (positive > 0) + span - 1) / span;
    int64_t share = (2 * runs * negative + all) / (2 * all);
    if (share == 0 && negative > 0) share = 1;
    size = static_cast<int32_t>(span * (share < runs - others ? share : runs - others));
  }
  // Of the bin of a row, given the number of elements of its sign before it.
  __device__ int32_t IdOf(int row, int64_t before) const {
    if (row == 0) return size;
    if (row >= kSideRows) return static_cast<int32_t>(before * size / negatives);
    const int32_t start = size + zeros;
    return start + static_cast<int32_t>(before * (buckets - start) / positives);
  }
};

// What is summed of a bucket.
struct Bucket {
  int32_t exponent;  // the largest
  unsigned long long sum, count;

  __device__ float Mean() const {
    if (count == 0 || exponent == 0) return 0.0f;
    const double mean = static_cast<double>(static_cast<int64_t>(sum)) / static_cast<double>(count);
    const double power = __longlong_as_double(static_cast<long long>(exponent - 157 + 1023) << 52);
    return static_cast<float>(mean * power);
  }
};

// Finds the id of each bin with elements, and the means, as Assign. A block calls it; only rows
// that are `used` may have elements.
__device__ inline void AssignBins(const DeviceBins& bins, const bool* used,
                                  const Quantiles& quantiles, float* means) {
  __shared__ int64_t before[kRows];  // at first the elements of each row
  __shared__ Bucket buckets[kThreads];
  const int thread = threadIdx.x;
  before[thread] = before[thread + kSideRows] = 0;
  buckets[thread] = {0, 0, 0};
  __syncthreads();
  VisitRows(used, [&](int row) {
    uint32_t count = 0;
    for (int b = 0; b < kOwnBins; ++b) {
      count += __ldcg(&bins.counts[row * kRow + b * kWarp + Lane()]);
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      count += __shfl_xor_sync(kAllLanes, count, lanes);
    }
    if (Lane() == 0) before[row] = count;
  });
  __syncthreads();
  const int64_t zeros = before[0], own_negatives = before[thread + kSideRows];
  const int64_t own_positives = thread > 0 ? before[thread] : 0;
  int64_t negatives, positives;
  const int64_t negatives_before = SumBefore(own_negatives, &negatives);
  const int64_t positives_before = SumBefore(own_positives, &positives);
  const Spans spans(negatives, zeros, positives, quantiles);
  __syncthreads();
  before[thread] = positives_before;
  before[thread + kSideRows] = negatives_before;
  __syncthreads();
  VisitRows(used, [&](int row) {
    uint32_t counts[kOwnBins], sum = 0;
    for (int b = 0; b < kOwnBins; ++b) {
      counts[b] = __ldcg(&bins.counts[row * kRow + Lane() * kOwnBins + b]);
      sum += counts[b];
    }
    uint32_t upto = sum;
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, upto, lanes);
      if (Lane() >= lanes) upto += other;
    }
    int64_t at = before[row] + upto - sum;
    for (int b = 0; b < kOwnBins; ++b) {
      if (counts[b] == 0) continue;
      const int32_t id = spans.IdOf(row, at);
      bins.ids[row * kRow + Lane() * kOwnBins + b] = static_cast<uint8_t>(id);
      atomicMax(&buckets[id].exponent, row % kSideRows);
      at += counts[b];
    }
  });
  __syncthreads();
  VisitRows(used, [&](int row) {
    for (int b = 0; b < kOwnBins; ++b) {
      const int64_t own = Lane() * kOwnBins + b, bin = row * kRow + own;
      const unsigned long long count = __ldcg(&bins.counts[bin]);
      if (count == 0 || row == 0) continue;
      // Of each element the leading one and the upper seven bits are those of the bin.
      const unsigned long long sum = count * ((128 + own) << 16) + __ldcg(&bins.sums[bin]);
      Bucket& bucket = buckets[bins.ids[bin]];
      const int32_t apart = bucket.exponent - row % kSideRows;
      atomicAdd(&bucket.sum, sum << 7 >> (apart < 63 ? apart : 63));
      atomicAdd(&bucket.count, count);
    }
  });
  __syncthreads();
  if (thread >= quantiles.buckets) return;
  const float mean = buckets[thread].Mean();
  means[thread] = thread < spans.size && mean != 0.0f ? -mean : mean;
}

}  // namespace grace
