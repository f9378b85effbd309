// Orthonormal columns from the sums of P, which every worker computes alike.
#pragma once

#include <cstdint>
#include <vector>

#include "low_rank.h"
#include "parallel.h"

namespace grace {

// The basis of each P of a list, by classical Gram-Schmidt; grace_tf/ops/reference_low_rank.py says
// in which order everything is computed.
void OrthonormalList(const Executor& executor, const std::vector<MatrixSize>& sizes,
                     const float* p, float* basis);

// w [rows, rank] of each matrix less what it has of a basis [rows, rank]: w - basis (basist w).
void RemoveList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* w,
                const float* basis, float* rest);

// Each column of each Q divided by its largest magnitude; columns of zeros and denormals become
// zeros.
void UnitColumnsList(const Executor& executor, const std::vector<MatrixSize>& sizes,
                     const float* q, const std::vector<float*>& units);

}  // namespace grace
