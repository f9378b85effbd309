// P = M Q on the device, row by row; see low_rank.h for the order of the sums.
#pragma once

#include "kernels/low_rank/device/matrices.h"

namespace grace {

constexpr int kHalf = 16;  // sums that share a row, as in the other kernels
constexpr int kRowsEach = 2, kSteps = 4;

// The sums over sixteen lanes of kCount values, by halves. Each halving leaves a lane half of the
// values, while it has several; value i is then with lanes 16 / kCount * i and after.
template <int kCount, int kLanes>
__device__ inline float SumLanes(const float* values) {
  if constexpr (kLanes == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    const float sum = AddZ(values[0], __shfl_xor_sync(kAllLanes, values[0], kLanes));
    return SumLanes<1, kLanes / 2>(&sum);
  } else {
    const bool upper = Lane() & kLanes;
    float sums[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float own = upper ? values[i + kCount / 2] : values[i];
      const float other = upper ? values[i] : values[i + kCount / 2];
      sums[i] = AddZ(own, __shfl_xor_sync(kAllLanes, other, kLanes));
    }
    return SumLanes<kCount / 2, kLanes / 2>(sums);
  }
}

// Columns [k, k + kRank) of P for the rows of a strip. Sixteen lanes share kRowsEach rows; in the
// columns that fill a row's last sixteen, all factors are zero. `kept`, unless null, gets the rows
// themselves; a lane writes there what it has read.
template <int kRank>
__device__ bool ProjectColumns(const MatrixItem& own, DeviceInput source, float multiplier,
                               int64_t row, int64_t k, float* kept, const Products& products) {
  const int lane = threadIdx.x % kHalf;
  const int64_t missing = own.rank - k;
  const float zero = multiplier == 1.0f ? 0.0f : MulZ(0.0f, multiplier);
  const float padding = source.residual ? AddZ(zero, 0.0f) : zero;
  const float* q = own.own_q + k;
  row += threadIdx.x / kHalf * kRowsEach;
  float sums[kRowsEach * kRank] = {};
  bool finite = true;
  for (int64_t begin = 0; begin < own.columns; begin += kSteps * kHalf) {
    float acc[kSteps * kRowsEach];
    const auto column = [=](int i) { return begin + i / kRowsEach * kHalf + lane; };
    const auto inside = [&](int i) {
      return column(i) < own.columns && row + i % kRowsEach < own.rows;
    };
    source.Gather<kSteps * kRowsEach>(
        inside, [&](int i) { return (row + i % kRowsEach) * own.columns + column(i); }, multiplier,
        padding, acc);
#pragma unroll
    for (int i = 0; i < kSteps * kRowsEach; ++i) {
      finite &= !inside(i) || IsFinite(acc[i]);
      if (kept && inside(i)) kept[(row + i % kRowsEach) * own.columns + column(i)] = acc[i];
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t j = begin + s * kHalf + lane;
      if (begin + s * kHalf >= own.columns) break;
      float elements[kRowsEach * kRank], factors[kRowsEach * kRank], terms[kRowsEach * kRank];
#pragma unroll
      for (int c = 0; c < kRank; ++c) {
        const float factor = j < own.columns && c < missing ? q[j * own.rank + c] : 0.0f;
#pragma unroll
        for (int r = 0; r < kRowsEach; ++r) {
          elements[r * kRank + c] = acc[s * kRowsEach + r];
          factors[r * kRank + c] = factor;
        }
      }
      MulEachZ<kRowsEach * kRank>(elements, factors, terms);
#pragma unroll
      for (int i = 0; i < kRowsEach * kRank; ++i) sums[i] = AddZ(sums[i], terms[i]);
    }
  }
  constexpr int kCount = kRowsEach * kRank;
  const float total = SumLanes<kCount, kHalf / 2>(sums);
  const int i = lane / (kHalf / kCount), r = i / kRank, c = i % kRank;
  if (lane % (kHalf / kCount) == 0 && c < missing && row + r < own.rows) {
    products.p[own.p + (row + r) * own.rank + k + c] = total;
  }
  return finite;
}

__device__ inline void ProjectStrip(const MatrixItem& own, int64_t strip,
                                    const Products& products) {
  if (!own.rank) {
    const int64_t begin = strip << kLogChunk;
    const int64_t n = own.rows - begin < kChunk ? own.rows - begin : kChunk;
    float acc[kEach];
    LoadPiece(own.source, products.multiplier, begin, n, 0.0f, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (PlaceOf(j) >= n) continue;
      products.dense[own.dense + begin + PlaceOf(j)] = acc[j];
      if (products.keeps) own.out[begin + PlaceOf(j)] = acc[j];
    }
    return NotePiece(acc, n, products.finite);
  }
  const int64_t row = strip << kLogStrip;
  DeviceInput source = own.source;
  float multiplier = products.multiplier;
  float* kept = products.keeps ? own.out : nullptr;
  bool finite = true;
  for (int64_t k = 0; k < own.rank; k += 8) {
    switch (own.rank - k) {
      case 1:
        finite &= ProjectColumns<1>(own, source, multiplier, row, k, kept, products);
        break;
      case 2:
        finite &= ProjectColumns<2>(own, source, multiplier, row, k, kept, products);
        break;
      case 3:
      case 4:
        finite &= ProjectColumns<4>(own, source, multiplier, row, k, kept, products);
        break;
      default:
        finite &= ProjectColumns<8>(own, source, multiplier, row, k, kept, products);
    }
    if (!kept) continue;
    // Further columns take the rows from there, since they may be written over x.
    source = {kept, nullptr};
    multiplier = 1.0f;
    kept = nullptr;
  }
  if (!finite) *products.finite = false;
}

}  // namespace grace
