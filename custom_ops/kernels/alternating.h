// Products of matrices with a basis on either side, for a list of tensors as in low_rank.h.
//
// Each matrix M has two bases of orthonormal columns, A [rows, rank] and B [columns, rank], end to
// end in `left` and `right`. Its products are P = M B and Q = Mt A. They stand for
//
//     M - (1 - A At) M (1 - B Bt) = (P - A (At P)) Bt + A Qt
#pragma once

#include <vector>

#include "low_rank.h"

namespace grace {

// p, q and dense of each M = x * multiplier + residual as ProjectList and ReprojectList take them;
// and kept = M less what they stand for where there is a `kept`, zeros for dense tensors. Returns
// whether all of every M is finite.
bool AlternateList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                   const std::vector<MatrixSize>& sizes, const float* left, const float* right,
                   float* p, float* q, float* dense);

// (rest Bt + A qt) * factor for each matrix, where `rest` is P - A (At P) as RemoveList takes it, and
// the dense tensors' values times factor, as ExpandList takes them. Returns whether all is finite.
bool ExpandSidesList(const Executor& executor, const std::vector<Target>& targets,
                     const std::vector<MatrixSize>& sizes, Factors bases, const float* rest,
                     const float* q, const float* dense, float factor);

}  // namespace grace
