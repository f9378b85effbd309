// Products with a basis on either side: every instruction set and number of threads gives the bits
// of the plain definitions.
#include "kernels/low_rank/two_sided_low_rank.h"

#include "kernels/low_rank/orthonormal.h"
#include "testing.h"

namespace grace {

// Dense, of one column, tails, several blocks, several chunks of rows; ranks above 4.
std::vector<MatrixSize> Sizes() {
  return {{33, 1, 0},   {5, 7, 1},   {40, 48, 2},   {17, 100, 3},   {9, 1, 1},
          {600, 16, 4}, {70, 40, 6}, {9000, 17, 2}, {3000, 200, 2}, {1, 1, 0}};
}

struct List {
  explicit List(float multiplier) {
    for (const MatrixSize& size : Sizes()) {
      const int64_t n = size.rows * size.columns;
      xs.push_back(Gradient(n));
      residuals.push_back(Gradient(n + 3));
      accs.emplace_back(n);
      for (int64_t i = 0; i < n; ++i)
        accs.back()[i] = xs.back()[i] * multiplier + residuals.back()[i];
      p += size.rows * size.rank;
      q += size.columns * size.rank;
      dense += size.rank ? 0 : size.rows;
    }
    left = Gradient(p);
    right = Gradient(q);
    for (float& value : left) value *= 0.1f;
    for (float& value : right) value *= 0.1f;
  }

  std::vector<std::vector<float>> xs, residuals, accs;
  std::vector<float> left, right;
  int64_t p = 0, q = 0, dense = 0;
};

// The products are those of ProjectList and ReprojectList; what is kept is acc less its expansion.
void TestAlternate() {
  const DenormalsAreZero scope;
  const std::vector<MatrixSize> sizes = Sizes();
  for (const float multiplier : {1.0f, 0.7f}) {
    const List list(multiplier);
    OnEveryIsa([&](const Executor& executor) {
      std::vector<Guarded<float>> residual_out;
      std::vector<EncodeInput> sources, plain;
      std::vector<const float*> qs;
      std::vector<std::vector<float>> totals;
      std::vector<DecodeOutput> targets;
      int64_t at = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        residual_out.emplace_back(list.xs[i].size());
        totals.emplace_back(list.xs[i].size());
      }
      for (size_t i = 0; i < sizes.size(); ++i) {
        const int64_t n = list.xs[i].size();
        sources.push_back({list.xs[i].data(), list.residuals[i].data(), residual_out[i].data(), n});
        plain.push_back({list.accs[i].data(), nullptr, nullptr, n});
        targets.push_back({totals[i].data(), n});
        qs.push_back(list.right.data() + at);
        at += sizes[i].columns * sizes[i].rank;
      }
      Guarded<float> p(list.p), q(list.q), dense(list.dense);
      EXPECT(AlternateList(executor, sources, multiplier, sizes, list.left.data(),
                           list.right.data(), p.data(), q.data(), dense.data()),
             "the flag of multiplier %g", multiplier);
      std::vector<float> wanted_p(list.p), wanted_q(list.q), wanted_dense(list.dense), rest(list.p);
      ProjectList(executor, plain, 1.0f, sizes, qs, wanted_p.data(), wanted_dense.data());
      ReprojectList(executor, plain, 1.0f, sizes, list.left.data(), wanted_q.data());
      EXPECT(p.Equals(wanted_p) && p.Intact(), "p");
      EXPECT(q.Equals(wanted_q) && q.Intact(), "q");
      EXPECT(dense.Equals(wanted_dense) && dense.Intact(), "dense");
      RemoveList(executor, sizes, p.data(), list.left.data(), rest.data());
      ExpandSidesList(executor, targets, sizes, {list.left.data(), list.right.data()}, rest.data(),
                      q.data(), dense.data(), 1.0f);
      for (size_t i = 0; i < sizes.size(); ++i) {
        for (size_t j = 0; j < totals[i].size(); ++j) totals[i][j] = list.accs[i][j] - totals[i][j];
        EXPECT(residual_out[i].Equals(totals[i]) && residual_out[i].Intact(), "residual_out %zu",
               i);
      }
    });
  }
}

// By its definition, where the sums are by halves and the columns are taken from the left.
void TestRemoveAndExpand() {
  const DenormalsAreZero scope;
  const std::vector<MatrixSize> sizes{{5, 4, 2}, {4, 9, 1}};
  const std::vector<float> basis = Gradient(14), w = Gradient(15), right = Gradient(17);
  std::vector<float> wanted(14);
  int64_t at = 0;
  for (const MatrixSize& size : sizes) {
    for (int64_t k = 0; k < size.rank; ++k) {
      float share[5] = {};
      for (int64_t c = 0; c < size.rank; ++c) {
        float sums[8] = {};
        for (int64_t i = 0; i < size.rows; ++i) {
          sums[i] = basis[at + i * size.rank + c] * w[at + i * size.rank + k];
        }
        for (int64_t n = size.rows > 4 ? 4 : 2; n; n /= 2) {
          for (int64_t i = 0; i < n; ++i) sums[i] += sums[i + n];
        }
        for (int64_t i = 0; i < size.rows; ++i) {
          const float product = basis[at + i * size.rank + c] * sums[0];
          share[i] = c ? share[i] + product : product;
        }
      }
      for (int64_t i = 0; i < size.rows; ++i) {
        wanted[at + i * size.rank + k] = w[at + i * size.rank + k] - share[i];
      }
    }
    at += size.rows * size.rank;
  }
  const std::vector<float> q = Gradient(18);
  OnEveryIsa([&](const Executor& executor) {
    Guarded<float> rest(14), first(20), second(36);
    RemoveList(executor, sizes, w.data(), basis.data(), rest.data());
    EXPECT(rest.Equals(wanted) && rest.Intact(), "rest");
    const bool finite =
        ExpandSidesList(executor, {{first.data(), 20}, {second.data(), 36}}, sizes,
                        {basis.data(), right.data()}, rest.data(), q.data(), nullptr, 0.5f);
    EXPECT(finite && first.Intact() && second.Intact(), "the expansion");
    const float* r = wanted.data();
    float element = r[2] * right[4];
    element += r[3] * right[5];
    element += basis[2] * q[4];
    element += basis[3] * q[5];
    EXPECT(first.data()[1 * 4 + 2] == element * 0.5f, "an element of rank 2");
    element = r[10] * right[8];
    element += basis[10] * q[8];
    EXPECT(second.data()[0] == element * 0.5f, "an element of rank 1");
  });
}

}  // namespace grace

int main() {
  grace::TestAlternate();
  grace::TestRemoveAndExpand();
  return grace::Finish("two-sided low rank");
}
