// Shared by the kernels on matrices of low rank: where a list has its parts, and how it is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/low_rank/low_rank.h"

namespace grace {

// Some rows and columns of x * multiplier + residual.
struct Strip {
  const float* x;
  const float* residual;  // null: nothing is added
  int64_t stride;         // from one row to the next
  int64_t rows, columns;
  float multiplier;
};

// The columns of a factor. Zeros fill each column up to `padded` elements, a multiple of 16.
struct Factor {
  float* data;
  int64_t padded, rank;
};

constexpr int64_t kWidth = 16;
inline int64_t Padded(int64_t columns) { return CeilDiv(columns, kWidth) * kWidth; }

// Where the parts of a list's tensors begin in P, in Q and among the dense.
struct Places {
  explicit Places(const std::vector<MatrixSize>& sizes) {
    for (const MatrixSize& size : sizes) {
      p.push_back(p_size);
      q.push_back(q_size);
      dense.push_back(dense_size);
      p_size += size.rows * size.rank;
      q_size += size.columns * size.rank;
      if (size.rank == 0) dense_size += size.rows;
    }
  }

  std::vector<int64_t> p, q, dense;
  int64_t p_size = 0, q_size = 0, dense_size = 0;
};

// The Q of a list by columns.
class Columns {
 public:
  Columns(const Executor& executor, const std::vector<MatrixSize>& sizes,
          const std::vector<const float*>& qs) {
    int64_t total = 0;
    std::vector<int64_t> starts;
    for (const MatrixSize& size : sizes) {
      starts.push_back(total);
      total += size.rank * Padded(size.columns);
    }
    data_.resize(total);
    for (size_t i = 0; i < sizes.size(); ++i) {
      factors_.push_back({data_.data() + starts[i], Padded(sizes[i].columns), sizes[i].rank});
    }
    executor.For(sizes.size(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Factor& factor = factors_[i];
        for (int64_t k = 0; k < factor.rank; ++k) {
          float* column = factor.data + k * factor.padded;
          for (int64_t j = 0; j < sizes[i].columns; ++j) column[j] = qs[i][j * factor.rank + k];
        }
      }
    });
  }

  const Factor& operator[](size_t i) const { return factors_[i]; }

 private:
  std::vector<float> data_;
  std::vector<Factor> factors_;
};

// Cuts lists between rows, and dense tensors between cache lines.
struct BetweenRows {
  const std::vector<MatrixSize>& sizes;
  int64_t operator()(size_t i, int64_t element) const {
    const int64_t multiple = sizes[i].rank ? sizes[i].columns : kWidth;
    return CeilDiv(element, multiple) * multiple;
  }
};

// Rows [begin, end) / columns of a tensor.
inline Strip StripOf(const EncodeInput& source, const MatrixSize& size, float multiplier,
                     int64_t begin, int64_t end) {
  const float* residual = source.residual ? source.residual + begin : nullptr;
  const int64_t rows = (end - begin) / size.columns;
  return {source.x + begin, residual, size.columns, rows, size.columns, multiplier};
}

// The factors a and b [n, rank] side by side: [n, 2 * rank].
inline void Join(const float* a, const float* b, int64_t n, int64_t rank, float* both) {
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(a + i * rank, rank, both + 2 * i * rank);
    std::copy_n(b + i * rank, rank, both + (2 * i + 1) * rank);
  }
}

}  // namespace grace
