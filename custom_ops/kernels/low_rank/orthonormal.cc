#include "kernels/low_rank/orthonormal.h"

#include <algorithm>
#include <cmath>

#define GRACE_KERNEL "kernels/low_rank/orthonormal-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// The largest magnitude of each of the columns of x [rows, rank].
std::vector<float> Largest(const float* x, int64_t rows, int64_t rank) {
  std::vector<uint32_t> largest(rank);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      largest[k] = std::max(largest[k], BitsOf(x[i * rank + k]) & kMagnitude);
    }
  }
  std::vector<float> floats;
  for (const uint32_t bits : largest) floats.push_back(Flush(FloatOf(bits)));
  return floats;
}

float Unit(float x, float largest) { return largest == 0.0f ? 0.0f : Flush(Flush(x) / largest); }

// The basis of one P, column after column.
class Orthonormal {
 public:
  Orthonormal(int64_t rows, int64_t rank) : rows_(rows), rank_(rank), n_(1) {
    while (n_ < rows) n_ *= 2;
    all_.assign((rank + 3) * n_, 0.0f);
    cosines_.resize(rank);
    w_ = all_.data() + rank * n_;
    share_ = w_ + n_;
    products_ = share_ + n_;
  }

  void Run(const float* p, float* basis) {
    const std::vector<float> largest = Largest(p, rows_, rank_);
    for (int64_t k = 0; k < rank_; ++k) {
      for (int64_t i = 0; i < rows_; ++i) w_[i] = Unit(p[i * rank_ + k], largest[k]);
      const float whole = dot_(w_, w_, n_, products_);
      float rest = Rest();
      if (rest <= kNegligible * whole) {
        std::fill_n(w_, n_, 0.0f);
        w_[LeastRow()] = 1.0f;
        rest = Rest();
      }
      divide_(std::sqrt(rest), n_, w_, all_.data() + k * n_);
    }
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t k = 0; k < rank_; ++k) basis[i * rank_ + k] = all_[k * n_ + i];
    }
  }

 private:
  // Takes out of w what it has of the basis, twice; returns the square of what is left.
  float Rest() {
    for (int time = 0; time < 2; ++time) {
      remove_(all_.data(), rank_, n_, w_, share_, products_, cosines_.data());
    }
    return dot_(w_, w_, n_, products_);
  }

  int64_t LeastRow() {
    norms_(all_.data(), rank_, n_, rows_, products_);
    return std::min_element(products_, products_ + rows_) - products_;
  }

  const int64_t rows_, rank_;
  int64_t n_;
  std::vector<float> all_, cosines_;
  float *w_, *share_, *products_;
  decltype(&generic::Dot) dot_ = GRACE_CHOOSE(Dot);
  decltype(&generic::Remove) remove_ = GRACE_CHOOSE(Remove);
  decltype(&generic::RowNorms) norms_ = GRACE_CHOOSE(RowNorms);
  decltype(&generic::Divide) divide_ = GRACE_CHOOSE(Divide);
};

// Calls body(i, where its part of P begins, and of Q) for each matrix, which has factors.
template <class Body>
void ForMatrices(const Executor& executor, const std::vector<MatrixSize>& sizes, const Body& body) {
  std::vector<int64_t> p{0}, q{0};
  for (const MatrixSize& size : sizes) {
    p.push_back(p.back() + size.rows * size.rank);
    q.push_back(q.back() + size.columns * size.rank);
  }
  executor.For(sizes.size(), 1, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t i = begin; i < end; ++i) {
      if (sizes[i].rank) body(i, p[i], q[i]);
    }
  });
}

// w - basis (basist w), both [rows, rank].
void RemoveOne(int64_t rows, int64_t rank, const float* w, const float* basis, float* rest) {
  const auto remove = GRACE_CHOOSE(Remove);
  int64_t n = 1;
  while (n < rows) n *= 2;
  std::vector<float> all((rank + 3) * n), cosines(rank);
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t k = 0; k < rank; ++k) all[k * n + j] = basis[j * rank + k];
  }
  float* own = all.data() + rank * n;
  for (int64_t k = 0; k < rank; ++k) {
    for (int64_t j = 0; j < rows; ++j) own[j] = w[j * rank + k];
    // A cosine of the column before that was infinite has left NaN there.
    std::fill(own + rows, own + n, 0.0f);
    remove(all.data(), rank, n, own, own + n, own + 2 * n, cosines.data());
    for (int64_t j = 0; j < rows; ++j) rest[j * rank + k] = own[j];
  }
}

}  // namespace

void OrthonormalList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* p,
                     float* basis) {
  ForMatrices(executor, sizes, [&](int64_t i, int64_t at, int64_t) {
    Orthonormal(sizes[i].rows, sizes[i].rank).Run(p + at, basis + at);
  });
}

void RemoveList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* w,
                const float* basis, float* rest) {
  ForMatrices(executor, sizes, [&](int64_t i, int64_t at, int64_t) {
    RemoveOne(sizes[i].rows, sizes[i].rank, w + at, basis + at, rest + at);
  });
}

void BasesList(const Executor& executor, const std::vector<MatrixSize>& sizes,
               const std::vector<const float*>& factors, float* left, float* right) {
  ForMatrices(executor, sizes, [&](int64_t i, int64_t p, int64_t q) {
    const auto [rows, columns, rank] = sizes[i];
    Orthonormal(rows, rank).Run(factors[i], left + p);
    Orthonormal(columns, rank).Run(factors[i] + rows * rank, right + q);
  });
}

void TurnList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* p,
              const float* q, const float* left, const float* right, bool p_first,
              const std::vector<float*>& factors) {
  ForMatrices(executor, sizes, [&](int64_t i, int64_t at, int64_t other) {
    const auto [rows, columns, rank] = sizes[i];
    float* own_q = factors[i] + rows * rank;
    if (p_first) {
      std::copy_n(p + at, rows * rank, factors[i]);
      RemoveOne(columns, rank, q + other, right + other, own_q);
    } else {
      RemoveOne(rows, rank, p + at, left + at, factors[i]);
      std::copy_n(q + other, columns * rank, own_q);
    }
  });
}

void UnitColumnsList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* q,
                     const std::vector<float*>& units) {
  ForMatrices(executor, sizes, [&](int64_t i, int64_t, int64_t at) {
    const int64_t rank = sizes[i].rank;
    const std::vector<float> largest = Largest(q + at, sizes[i].columns, rank);
    for (int64_t j = 0; j < sizes[i].columns * rank; ++j) {
      units[i][j] = Unit(q[at + j], largest[j % rank]);
    }
  });
}

}  // namespace grace
