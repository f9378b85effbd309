// Orthonormal columns on the device, one factor a block, as ../orthonormal.h has them.
#pragma once

#include "kernels/base/device/block.h"
#include "kernels/low_rank/device/columns.h"
#include "kernels/low_rank/orthonormal.h"

namespace grace {

// a / b on a processor that treats denormals as zeros of their sign; see SmallProduct.
__device__ inline float DivZ(float a, float b) {
  a = SignedFlush(a);
  b = SignedFlush(b);
  const float quotient = a / b;
  const uint32_t bits = __float_as_uint(quotient);
  if ((bits & kMagnitude) > kSmallestNormal || (bits & kMagnitude) == 0) return quotient;
  const float large = a * 0x1p64f / b;
  return __uint_as_float((bits & kSignBit) | (fabsf(large) < 0x1p-62f ? 0 : kSmallestNormal));
}

__device__ inline float Unit(float x, float largest) {
  return largest == 0.0f ? 0.0f : PlainFlush(DivZ(PlainFlush(x), largest));
}

__device__ inline uint32_t MagnitudeOf(float x) { return __float_as_uint(x) & kMagnitude; }

// A factor [rows, rank] and its basis. `room` has the basis' columns, each filled up to n elements,
// then the column at work, then `rank` numbers.
struct BasisItem {
  const float* factor;
  float* basis;
  float* room;
  int64_t rows, rank, first;
};

// Makes the columns of one factor orthonormal, by one block of threads. Only thread i % kThreads
// reads and writes element i of each column, so the steps need no barrier between them.
class Orthonormal {
 public:
  __device__ explicit Orthonormal(const BasisItem& own)
      : own_(own), n_(PowerOfTwo(own.rows)), w_(own.room + own.rank * n_), sums_(w_ + n_) {}

  __device__ void Run() {
    for (int64_t k = 0; k < own_.rank; ++k) {
      const float largest = Largest(k);
      for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
        w_[i] = i < own_.rows ? Unit(own_.factor[i * own_.rank + k], largest) : 0.0f;
      }
      const float negligible = MulZ(kNegligible, Square());
      float rest;
      for (int time = 0; time < 2; ++time) {
        rest = Rest(k);
        if (time || !(rest <= negligible)) break;
        const int64_t least = LeastRow(k);
        for (int64_t i = threadIdx.x; i < n_; i += kThreads) w_[i] = i == least ? 1.0f : 0.0f;
      }
      const float norm = sqrtf(rest);
      for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
        const float element = DivZ(w_[i], norm);
        own_.room[k * n_ + i] = element;
        if (i < own_.rows) own_.basis[i * own_.rank + k] = element;
      }
    }
  }

 private:
  __device__ float Largest(int64_t k) const {
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < own_.rows; i += kThreads) {
      const uint32_t magnitude = MagnitudeOf(own_.factor[i * own_.rank + k]);
      largest = largest < magnitude ? magnitude : largest;
    }
    return PlainFlush(__uint_as_float(JoinBlock(largest, Maximum())));
  }

  __device__ float Square() const {
    const auto own = [this](int64_t i) { return w_[i]; };
    DotColumns(1, n_, [this](int64_t, int64_t i) { return w_[i]; }, own, sums_);
    return sums_[0];
  }

  // Takes out of w what it has of the basis' first k columns, twice; returns the square of what is
  // left. The other kernels take out all columns, of which those from k on are zeros: each adds a
  // zero of the same sign, or NaN, so that one stands for all.
  __device__ float Rest(int64_t k) const {
    const auto basis = [this, k](int64_t c, int64_t i) {
      return c < k ? own_.room[c * n_ + i] : 0.0f;
    };
    for (int time = 0; time < 2; ++time) {
      DotColumns(k + 1, n_, basis, [this](int64_t i) { return w_[i]; }, sums_);
      for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
        w_[i] = SubZ(w_[i], ShareOf(k + 1, i, basis, sums_));
      }
    }
    return Square();
  }

  // The row of the least norm, the first of several.
  __device__ int64_t LeastRow(int64_t k) const {
    uint32_t least = ~0u;
    int64_t row = own_.rows;
    for (int64_t i = threadIdx.x; i < own_.rows; i += kThreads) {
      float square = 0.0f;
      for (int64_t c = 0; c < k; ++c) {
        const float element = own_.room[c * n_ + i];
        square = AddZ(square, MulZ(element, element));
      }
      if (__float_as_uint(square) >= least) continue;
      least = __float_as_uint(square);
      row = i;
    }
    const uint32_t all = JoinBlock(least, Minimum());
    return JoinBlock(least == all ? row : own_.rows, Minimum());
  }

  const BasisItem& own_;
  const int64_t n_;
  float* const w_;
  float* const sums_;
};

}  // namespace grace
