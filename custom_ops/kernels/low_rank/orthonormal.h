// Orthonormal columns from the sums of P; every worker computes the same ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/low_rank/low_rank.h"

namespace grace {

// A column whose rest is below this share of its square consists of rounding errors.
constexpr float kNegligible = 0x1p-32f;

// The basis of each P of a list, by classical Gram-Schmidt; grace_tf/ops/reference/low_rank.py says
// in which order everything is computed.
void OrthonormalList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* p,
                     float* basis);

// Removes a basis [rows, rank] from w [rows, rank] of each matrix: w - basis (basist w).
void RemoveList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* w,
                const float* basis, float* rest);

// The bases of both factors of each matrix: factors[i] has P [rows, rank] and then Q
// [columns, rank], and is ignored for dense tensors.
void BasesList(const Executor& executor, const std::vector<MatrixSize>& sizes,
               const std::vector<const float*>& factors, float* left, float* right);

// P and then Q of each matrix. With `p_first`, Q without the part in its basis `right`; else P
// without the part in its basis `left`. factors[i] may be null for dense tensors.
void TurnList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* p,
              const float* q, const float* left, const float* right, bool p_first,
              const std::vector<float*>& factors);

// Each column of each Q divided by its largest magnitude; columns of zeros and denormals become
// zeros.
void UnitColumnsList(const Executor& executor, const std::vector<MatrixSize>& sizes, const float* q,
                     const std::vector<float*>& units);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_bases_list(const grace::MatrixSize* sizes, int64_t count,
                          const float* const* factors, float* left, float* right, void* workspace,
                          size_t* bytes, void* stream);
int grace_cuda_orthonormal_list(const grace::MatrixSize* sizes, int64_t count, const float* p,
                                float* basis, void* workspace, size_t* bytes, void* stream);
int grace_cuda_remove_list(const grace::MatrixSize* sizes, int64_t count, const float* w,
                           const float* basis, float* rest, void* workspace, size_t* bytes,
                           void* stream);
int grace_cuda_turn_list(const grace::MatrixSize* sizes, int64_t count, const float* p,
                         const float* q, const float* left, const float* right, bool p_first,
                         float* const* factors, void* workspace, size_t* bytes, void* stream);
int grace_cuda_unit_columns_list(const grace::MatrixSize* sizes, int64_t count, const float* q,
                                 float* const* units, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
