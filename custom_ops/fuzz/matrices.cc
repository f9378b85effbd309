// Cases of the kernels on factors of low rank, which other workers' factors come to.
#include "case.h"
#include "kernels/low_rank/low_rank_parts.h"
#include "kernels/low_rank/orthonormal.h"
#include "kernels/low_rank/two_sided_low_rank.h"

namespace grace {
namespace {

// Matrices with factors, and tensors without.
struct Matrices {
  explicit Matrices(Case* own) {
    for (int64_t i = 1 + own->Below(4); i > 0; --i) {
      const bool tall = own->OneIn(200);
      const int64_t rows = 1 + own->Below(tall ? 3 * kChunk : 40);
      const int64_t columns = 1 + own->Below(40), rank = 1 + own->Below(std::min<int64_t>(5, rows));
      sizes.push_back(own->OneIn(4) ? MatrixSize{rows, 1, 0} : MatrixSize{rows, columns, rank});
    }
    for (const MatrixSize& size : sizes) lengths.push_back(size.rows * size.columns);
    const Places places(sizes);
    p = places.p_size;
    q = places.q_size;
    dense = places.dense_size;
  }

  // A float for each element of each matrix' P and Q, which lie end to end, and where they begin.
  Guarded<float> Factors(const Guarded<float>& from, std::vector<float*>* at) const {
    Guarded<float> factors(p + q);
    std::copy_n(from.data(), p + q, factors.data());
    float* next = factors.data();
    for (const MatrixSize& size : sizes) {
      at->push_back(next);
      next += (size.rows + size.columns) * size.rank;
    }
    return factors;
  }

  std::vector<MatrixSize> sizes;
  std::vector<int64_t> lengths;
  int64_t p, q, dense;
};

void FuzzExpandList(Case* own) {
  const Matrices all(own);
  const Guarded<float> p = own->Floats(all.p), q = own->Floats(all.q), rest = own->Floats(all.p);
  const Guarded<float> other = own->Floats(all.q), dense = own->Floats(all.dense);
  const float factor = own->Factor();
  const bool sides = own->OneIn(2);
  own->Run([&](const Executor& executor) {
    const Outputs outputs(all.lengths);
    const bool finite =
        sides ? ExpandSidesList(executor, outputs.targets, all.sizes, {p.data(), other.data()},
                                rest.data(), q.data(), dense.data(), factor)
              : ExpandList(executor, outputs.targets, all.sizes, p.data(), q.data(), dense.data(),
                           factor);
    return Totals(finite, outputs);
  });
}

void FuzzOrthonormalList(Case* own) {
  const Matrices all(own);
  const Guarded<float> p = own->Floats(all.p), w = own->Floats(all.p), given = own->Floats(all.q);
  own->Run([&](const Executor& executor) {
    const Guarded<float> basis(all.p), rest(all.p), units(all.q);
    OrthonormalList(executor, all.sizes, p.data(), basis.data());
    RemoveList(executor, all.sizes, w.data(), p.data(), rest.data());
    std::vector<float*> at;
    float* next = units.data();
    for (const MatrixSize& size : all.sizes) {
      at.push_back(next);
      next += size.columns * size.rank;
    }
    UnitColumnsList(executor, all.sizes, given.data(), at);
    Results results;
    results.Take("OrthonormalList", basis, all.p);
    results.Take("RemoveList", rest, all.p);
    results.Take("UnitColumnsList", units, all.q);
    return results;
  });
}

void FuzzBasesList(Case* own) {
  Matrices all(own);
  // Both factors have bases only where no side is shorter than the rank.
  for (MatrixSize& size : all.sizes) size.rank = std::min(size.rank, size.columns);
  const Places places(all.sizes);
  all.p = places.p_size;
  all.q = places.q_size;
  const Guarded<float> given = own->Floats(all.p + all.q);
  const Guarded<float> p = own->Floats(all.p), q = own->Floats(all.q);
  const bool p_first = own->OneIn(2);
  own->Run([&](const Executor& executor) {
    const Guarded<float> left(all.p), right(all.q);
    std::vector<float*> inputs, outputs;
    const Guarded<float> factors = all.Factors(given, &inputs);
    const Guarded<float> turned = all.Factors(given, &outputs);
    BasesList(executor, all.sizes, {inputs.begin(), inputs.end()}, left.data(), right.data());
    TurnList(executor, all.sizes, p.data(), q.data(), left.data(), right.data(), p_first, outputs);
    Results results;
    results.Take("BasesList", left, all.p);
    results.Take("BasesList", right, all.q);
    results.Take("TurnList", turned, all.p + all.q);
    return results;
  });
}

// What a worker computes of its own gradient with the factors that came.
void FuzzReprojectList(Case* own) {
  const Matrices all(own);
  std::vector<Guarded<float>> xs;
  for (const int64_t n : all.lengths) xs.push_back(own->Floats(n));
  const Guarded<float> p = own->Floats(all.p), q = own->Floats(all.q);
  const bool alternate = own->OneIn(2);
  own->Run([&](const Executor& executor) {
    const Outputs residual_out(all.lengths);
    const Guarded<float> out_p(all.p), out_q(all.q), dense(all.dense);
    std::vector<EncodeInput> sources;
    for (size_t i = 0; i < xs.size(); ++i) {
      sources.push_back(
          {xs[i].data(), xs[i].data(), residual_out.targets[i].total, all.lengths[i]});
    }
    Results results;
    if (alternate) {
      results.Take("finite", AlternateList(executor, sources, 0.7f, all.sizes, p.data(), q.data(),
                                           out_p.data(), out_q.data(), dense.data()));
      results.Take("AlternateList p", out_p, all.p);
      results.Take("AlternateList dense", dense, all.dense);
    } else {
      ReprojectList(executor, sources, 0.7f, all.sizes, p.data(), out_q.data());
    }
    results.Take("q", out_q, all.q);
    results.Take("residual_out", residual_out.each, all.lengths);
    return results;
  });
}

}  // namespace

std::vector<Decoder> MatrixDecoders() {
  return {{"ExpandList, ExpandSidesList", FuzzExpandList},
          {"OrthonormalList, RemoveList, UnitColumnsList", FuzzOrthonormalList},
          {"BasesList, TurnList", FuzzBasesList},
          {"ReprojectList, AlternateList", FuzzReprojectList}};
}

}  // namespace grace
