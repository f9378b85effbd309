// Low rank: every instruction set and number of threads gives the bits of the plain definitions.
#include "kernels/low_rank/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/low_rank/orthonormal.h"
#include "testing.h"

namespace grace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Where a list has its parts, and its tensors with their residuals.
struct List {
  List(std::vector<MatrixSize> all, float multiplier) : sizes(std::move(all)) {
    for (const MatrixSize& size : sizes) {
      const int64_t n = size.rows * size.columns;
      xs.push_back(Gradient(n));
      residuals.push_back(Gradient(n + 3));
      accs.emplace_back(n);
      for (int64_t i = 0; i < n; ++i)
        accs.back()[i] = xs.back()[i] * multiplier + residuals.back()[i];
      residual_out.emplace_back(n);
      totals.emplace_back(n);
      qs.push_back(Gradient(size.columns * size.rank + 1));
      p += size.rows * size.rank;
      q += size.columns * size.rank;
      dense += size.rank ? 0 : size.rows;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t n = sizes[i].rows * sizes[i].columns;
      sources.push_back({xs[i].data(), residuals[i].data(), residual_out[i].data(), n});
      targets.push_back({totals[i].data(), n});
      factors.push_back(qs[i].data());
    }
  }

  // What ProjectList has kept, where ReprojectList leaves the residuals.
  std::vector<EncodeInput> Kept() const {
    std::vector<EncodeInput> kept;
    for (const EncodeInput& source : sources) {
      kept.push_back({source.residual_out, nullptr, source.residual_out, source.n});
    }
    return kept;
  }

  std::vector<MatrixSize> sizes;
  std::vector<std::vector<float>> xs, residuals, accs, qs;
  std::vector<Guarded<float>> residual_out, totals;
  std::vector<EncodeInput> sources;
  std::vector<DecodeOutput> targets;
  std::vector<const float*> factors;
  int64_t p = 0, q = 0, dense = 0;
};

// Of one column, fewer than one vector, tails, several blocks, several chunks of rows; ranks
// above 4.
std::vector<MatrixSize> Sizes() {
  return {{33, 1, 0},    {5, 7, 1},    {40, 48, 4}, {40, 48, 2},    {17, 100, 3},   {9, 1, 1},
          {70001, 1, 0}, {600, 16, 4}, {70, 40, 6}, {20000, 17, 4}, {3000, 200, 4}, {1, 1, 0}};
}

// p, dense, q and residual_out by their definitions, where denormals are zero.
void TestProducts() {
  const DenormalsAreZero scope;
  for (const float multiplier : {1.0f, 0.7f}) {
    const List wanted(Sizes(), multiplier);
    std::vector<float> p, q, dense;
    std::vector<std::vector<float>> residual_out;
    std::vector<float> basis = Gradient(wanted.p);
    for (float& value : basis) value *= 0.1f;
    int64_t place = 0;
    for (size_t t = 0; t < wanted.sizes.size(); ++t) {
      const auto [rows, columns, rank] = wanted.sizes[t];
      const std::vector<float>& acc = wanted.accs[t];
      residual_out.push_back(acc);
      if (!rank) {
        dense.insert(dense.end(), acc.begin(), acc.end());
        std::fill(residual_out[t].begin(), residual_out[t].end(), 0.0f);
        continue;
      }
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t k = 0; k < rank; ++k) {
          float sums[16] = {};
          for (int64_t j = 0; j < CeilDiv(columns, 16) * 16; ++j) {
            sums[j % 16] += j < columns ? acc[i * columns + j] * wanted.qs[t][j * rank + k] : 0.0f;
          }
          for (int half = 8; half; half /= 2) {
            for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
          }
          p.push_back(sums[0]);
        }
      }
      const float* own = basis.data() + place;
      const int64_t first = q.size();
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t k = 0; k < rank; ++k) {
          float total = 0.0f;
          for (int64_t row = 0; row < rows; row += kRowChunk) {
            float sum = 0.0f;
            for (int64_t i = row; i < std::min(row + kRowChunk, rows); ++i) {
              sum += acc[i * columns + j] * own[i * rank + k];
            }
            total = row ? total + sum : sum;
          }
          q.push_back(total);
        }
      }
      for (int64_t i = 0; i < rows * columns; ++i) {
        const float* mine = own + i / columns * rank;
        const float* other = q.data() + first + i % columns * rank;
        float product = mine[0] * other[0];
        for (int64_t k = 1; k < rank; ++k) product += mine[k] * other[k];
        residual_out[t][i] -= product;
      }
      place += rows * rank;
    }
    OnEveryIsa([&](const Executor& executor) {
      List list(Sizes(), multiplier);
      Guarded<float> own_p(list.p), own_dense(list.dense), own_q(list.q);
      EXPECT(ProjectList(executor, list.sources, multiplier, list.sizes, list.factors, own_p.data(),
                         own_dense.data()),
             "finite");
      EXPECT(own_p.Equals(p) && own_p.Intact(), "p");
      EXPECT(own_dense.Equals(dense) && own_dense.Intact(), "dense");
      const auto keeps = [&](const std::vector<std::vector<float>>& kept, const char* name) {
        for (size_t t = 0; t < kept.size(); ++t) {
          EXPECT(list.residual_out[t].Equals(kept[t]) && list.residual_out[t].Intact(), "%s %ld",
                 name, long(t));
        }
      };
      keeps(list.accs, "M");
      ReprojectList(executor, list.Kept(), 1.0f, list.sizes, basis.data(), own_q.data());
      EXPECT(own_q.Equals(q) && own_q.Intact(), "q");
      keeps(residual_out, "residual_out of M");
      own_q.Spoil();
      ReprojectList(executor, list.sources, multiplier, list.sizes, basis.data(), own_q.data());
      EXPECT(own_q.Equals(q) && own_q.Intact(), "q of gradient and residual");
      keeps(residual_out, "residual_out");
      // M in the place of the gradient.
      for (size_t t = 0; t < list.sources.size(); ++t) {
        std::copy_n(list.xs[t].data(), list.sources[t].n, list.residual_out[t].data());
        list.sources[t].x = list.residual_out[t].data();
      }
      own_p.Spoil();
      EXPECT(ProjectList(executor, list.sources, multiplier, list.sizes, list.factors, own_p.data(),
                         own_dense.data()),
             "finite in place");
      EXPECT(own_p.Equals(p) && own_p.Intact(), "p in place");
      keeps(list.accs, "M in place");
    });
  }
}

void TestExpand() {
  const DenormalsAreZero scope;
  List list(Sizes(), 1.0f);
  const std::vector<float> p = Gradient(list.p), q = Gradient(list.q), dense = Gradient(list.dense);
  for (const float factor : {1.0f, 0.3f}) {
    OnEveryIsa([&](const Executor& executor) {
      List own(Sizes(), 1.0f);
      EXPECT(ExpandList(executor, own.targets, own.sizes, p.data(), q.data(), dense.data(), factor),
             "finite");
      int64_t p_at = 0, q_at = 0, dense_at = 0;
      for (size_t t = 0; t < own.sizes.size(); ++t) {
        const auto [rows, columns, rank] = own.sizes[t];
        std::vector<float> wanted;
        for (int64_t i = 0; i < rows * columns; ++i) {
          const float* mine = p.data() + p_at + i / columns * rank;
          const float* other = q.data() + q_at + i % columns * rank;
          float total = rank ? mine[0] * other[0] : dense[dense_at + i];
          for (int64_t k = 1; k < rank; ++k) total += mine[k] * other[k];
          wanted.push_back(rank || factor != 1.0f ? total * factor : total);
        }
        EXPECT(own.totals[t].Equals(wanted) && own.totals[t].Intact(), "total %ld", long(t));
        p_at += rows * rank;
        q_at += columns * rank;
        dense_at += rank ? 0 : rows;
      }
    });
  }
}

void TestFlags() {
  const std::vector<MatrixSize> sizes{{40, 48, 4}, {100, 1, 0}, {3000, 200, 1}};
  for (const float bad : {INFINITY, -INFINITY, kNan}) {
    for (size_t t = 0; t < sizes.size(); ++t) {
      OnEveryIsa([&](const Executor& executor) {
        List list(sizes, 1.0f);
        std::vector<float> p(list.p), dense(list.dense), q(list.q, 1.0f);
        list.residuals[t][sizes[t].rows * sizes[t].columns - 1] = bad;
        const bool finite =
            ProjectList(executor, list.sources, 1.0f, sizes, list.factors, p.data(), dense.data());
        EXPECT(!finite, "%g in %ld", bad, long(t));
        (sizes[t].rank ? p : dense)[t == 2 ? p.size() - 1 : 0] = bad;
        for (float& value : p) value = std::isfinite(value) ? value : bad;
        EXPECT(!ExpandList(executor, list.targets, sizes, p.data(), q.data(), dense.data(), 1.0f),
               "%g in total %ld", bad, long(t));
      });
    }
  }
  // Products that overflow do not make the gradient infinite.
  List list({{4, 64, 1}}, 1.0f);
  for (float& x : list.xs[0]) x = 3e38f;
  for (float& q : list.qs[0]) q = 1.0f;
  std::vector<float> p(4);
  const EncodeInput source{list.xs[0].data(), nullptr, nullptr, 256};
  OnEveryIsa([&](const Executor& executor) {
    EXPECT(ProjectList(executor, {source}, 1.0f, list.sizes, list.factors, p.data(), nullptr),
           "finite");
    EXPECT(!std::isfinite(p[0]), "overflow");
    // They do not change what is kept in the place of the gradient either.
    Guarded<float> kept(256);
    std::fill_n(kept.data(), 256, 2e38f);
    const std::vector<float> residual(256, 1e38f), wanted(256, 2e38f + 1e38f);
    const EncodeInput in_place{kept.data(), residual.data(), kept.data(), 256};
    EXPECT(ProjectList(executor, {in_place}, 1.0f, list.sizes, list.factors, p.data(), nullptr),
           "finite in place");
    EXPECT(!std::isfinite(p[0]) && kept.Equals(wanted) && kept.Intact(), "overflow in place");
  });
}

// The largest deviation of the products of columns from 1 and 0.
double Skewness(const float* basis, const MatrixSize& size) {
  double most = 0;
  for (int64_t a = 0; a < size.rank; ++a) {
    for (int64_t b = 0; b < size.rank; ++b) {
      double dot = a == b ? -1 : 0;
      for (int64_t i = 0; i < size.rows; ++i) {
        dot += double(basis[i * size.rank + a]) * basis[i * size.rank + b];
      }
      most = std::max(most, std::isfinite(dot) ? std::fabs(dot) : 1e9);
    }
  }
  return most;
}

void TestOrthonormal() {
  const std::vector<MatrixSize> sizes{{5, 7, 1}, {5, 7, 4},     {64, 9, 4}, {100, 9, 4},
                                      {7, 7, 7}, {20000, 9, 4}, {33, 1, 0}, {1000, 40, 32},
                                      {4, 4, 4}, {129, 9, 3}};
  for (const char* kind : {"normal", "zero", "equal", "huge", "denormal", "nearly equal"}) {
    std::vector<float> p, first;
    for (const MatrixSize& size : sizes) {
      const std::vector<float> normal = Gradient(size.rows * size.rank + 1);
      for (int64_t i = 0; i < size.rows * size.rank; ++i) {
        const float x = normal[i], y = normal[i / size.rank];
        p.push_back(kind[0] == 'z'   ? 0.0f
                    : kind[0] == 'e' ? y
                    : kind[0] == 'h' ? std::clamp(x, -2.0f, 2.0f) * 1.7e38f
                    : kind[0] == 'd' ? x * 1e-40f
                    : kind[1] == 'e' ? y + 1e-6f * x
                                     : x);
      }
    }
    OnEveryIsa([&](const Executor& executor) {
      Guarded<float> basis(p.size());
      OrthonormalList(executor, sizes, p.data(), basis.data());
      if (first.empty()) first.assign(basis.data(), basis.data() + p.size());
      EXPECT(basis.Equals(first) && basis.Intact(), "basis of %s", kind);
      const float* own = basis.data();
      for (const MatrixSize& size : sizes) {
        EXPECT(Skewness(own, size) < 1e-5, "%s [%ld, %ld] by %g", kind, long(size.rows),
               long(size.rank), Skewness(own, size));
        own += size.rows * size.rank;
      }
    });
  }
}

void TestUnitColumns() {
  const std::vector<MatrixSize> sizes{{9, 3, 2}, {5, 1, 0}, {9, 2, 1}};
  const std::vector<float> q{1e-40f, 4.0f, -1e-39f, -8.0f, 0.0f, 1.0f, -3e38f, 1e38f};
  const std::vector<float> wanted{0.0f, 0.5f, 0.0f, -1.0f, 0.0f, 0.125f};
  OnEveryIsa([&](const Executor& executor) {
    Guarded<float> a(6), b(2);
    UnitColumnsList(executor, sizes, q.data(), {a.data(), nullptr, b.data()});
    EXPECT(a.Equals(wanted) && a.Intact(), "units");
    EXPECT(b.Equals({-1.0f, 1e38f / 3e38f}) && b.Intact(), "units of huge columns");
  });
}

}  // namespace grace

int main() {
  grace::TestProducts();
  grace::TestExpand();
  grace::TestFlags();
  grace::TestOrthonormal();
  grace::TestUnitColumns();
  return grace::Finish("low rank");
}
