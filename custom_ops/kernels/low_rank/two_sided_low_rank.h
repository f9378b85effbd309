// Products of matrices with a basis on either side, for a list of tensors as in low_rank.h.
//
// Each matrix M has two bases of orthonormal columns, A [rows, rank] and B [columns, rank], end to
// end in `left` and `right`. Its products are P = M B and Q = Mt A. They stand for
//
//     M - (1 - A At) M (1 - B Bt) = (P - A (At P)) Bt + A Qt
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/low_rank/low_rank.h"

namespace grace {

// p, q and dense of each M = x * multiplier + residual as ProjectList and ReprojectList take them;
// and residual_out = M less the decoded value where there is a `residual_out`, zeros for dense
// tensors. Returns whether all of every M is finite.
bool AlternateList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<MatrixSize>& sizes, const float* left,
                   const float* right, float* p, float* q, float* dense);

// (rest Bt + A qt) * factor for each matrix, where `rest` is P - A (At P) as RemoveList takes it,
// and the dense tensors' values times factor, as ExpandList takes them. Returns whether all is
// finite.
bool ExpandSidesList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                     const std::vector<MatrixSize>& sizes, Factors bases, const float* rest,
                     const float* q, const float* dense, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_alternate_list(const grace::EncodeInput* sources, int64_t count, float multiplier,
                              const grace::MatrixSize* sizes, const float* left, const float* right,
                              float* p, float* q, float* dense, bool* finite, void* workspace,
                              size_t* bytes, void* stream);
int grace_cuda_expand_sides_list(const grace::DecodeOutput* targets, int64_t count,
                                 const grace::MatrixSize* sizes, grace::Factors bases,
                                 const float* rest, const float* q, const float* dense,
                                 float factor, bool* finite, void* workspace, size_t* bytes,
                                 void* stream);

}  // extern "C"
