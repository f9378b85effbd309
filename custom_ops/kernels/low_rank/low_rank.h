// Products of matrices with factors of low rank, for a list of tensors.
//
// A tensor of a list is a matrix M [rows, columns], in row order, with factors of `rank` columns:
// P [rows, rank] and Q [columns, rank]. One of rank 0 has no factors and travels dense; it has one
// column. The P of a list's matrices lie end to end, and so do the Q, and the dense tensors.
//
// No result depends on the instruction set or on the threads. Denormals in inputs and
// results count as zeros of their sign. Values that are only copied keep their bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

struct MatrixSize {
  int64_t rows, columns, rank;
};

// M Q for each M = x * multiplier + residual, and the dense tensors' x * multiplier + residual.
// Sixteen sums share a row, each of every sixteenth product; they are added by halves. Returns
// whether all of every M is finite. qs[i] is null for a dense tensor. Where
// `residual_out` is not null, M is written there, for dense tensors too. ReprojectList reads it.
bool ProjectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                 float multiplier, const std::vector<MatrixSize>& sizes,
                 const std::vector<const float*>& qs, float* p, float* dense);

// P and Q of a list's matrices, or null.
struct Factors {
  const float* p;
  const float* q;
};

// q = Mt P for each M, added row after row; and residual_out = M - P qt for those that have a
// `residual_out`, zeros for dense tensors. Rows are added in chunks of kRowChunk, and the chunks'
// sums one after another. With other factors, of as many columns, residual_out = M - (their P Qt +
// P qt), the sum as in ExpandList.
void ReprojectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<MatrixSize>& sizes, const float* p, float* q,
                   Factors others = {});
constexpr int64_t kRowChunk = 8192;

// P Qt * factor for each matrix, and the dense tensors' values times factor, unless it is 1. An
// element of P Qt is ((p0 q0 + p1 q1) + p2 q2) + ... Returns whether all of it is finite.
bool ExpandList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                const std::vector<MatrixSize>& sizes, const float* p, const float* q,
                const float* dense, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_expand_list(const grace::DecodeOutput* targets, int64_t count,
                           const grace::MatrixSize* sizes, const float* p, const float* q,
                           const float* dense, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);
int grace_cuda_project_list(const grace::EncodeInput* sources, int64_t count, float multiplier,
                            const grace::MatrixSize* sizes, const float* const* qs, float* p,
                            float* dense, bool* finite, void* workspace, size_t* bytes,
                            void* stream);
int grace_cuda_reproject_list(const grace::EncodeInput* sources, int64_t count, float multiplier,
                              const grace::MatrixSize* sizes, const float* p, float* q,
                              grace::Factors others, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
