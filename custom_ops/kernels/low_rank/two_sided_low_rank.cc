#include "kernels/low_rank/two_sided_low_rank.h"

#include "kernels/low_rank/low_rank_parts.h"
#include "kernels/low_rank/orthonormal.h"

namespace grace {

bool AlternateList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<MatrixSize>& sizes, const float* left,
                   const float* right, float* p, float* q, float* dense) {
  const Places places(sizes);
  std::vector<const float*> qs;
  for (const int64_t place : places.q) qs.push_back(right + place);
  const bool finite = ProjectList(executor, sources, multiplier, sizes, qs, p, dense);
  const bool keeps = !sources.empty() && sources[0].residual_out;
  if (!keeps) {
    ReprojectList(executor, sources, multiplier, sizes, left, q);
    return finite;
  }
  std::vector<float> rest(places.p_size);
  RemoveList(executor, sizes, p, left, rest.data());
  std::vector<EncodeInput> kept;
  for (const EncodeInput& source : sources) {
    kept.push_back({source.residual_out, nullptr, source.residual_out, source.n});
  }
  ReprojectList(executor, kept, 1.0f, sizes, left, q, {rest.data(), right});
  return finite;
}

bool ExpandSidesList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                     const std::vector<MatrixSize>& sizes, Factors bases, const float* rest,
                     const float* q, const float* dense, float factor) {
  const Places places(sizes);
  std::vector<float> p(2 * places.p_size), both(2 * places.q_size);
  std::vector<MatrixSize> doubled = sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [rows, columns, rank] = sizes[i];
    const int64_t own = places.p[i], other = places.q[i];
    Join(rest + own, bases.p + own, rows, rank, p.data() + 2 * own);
    Join(bases.q + other, q + other, columns, rank, both.data() + 2 * other);
    doubled[i].rank = 2 * rank;
  }
  return ExpandList(executor, targets, doubled, p.data(), both.data(), dense, factor);
}

}  // namespace grace
