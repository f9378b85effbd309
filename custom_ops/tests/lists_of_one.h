// The list kernels on one tensor, for tests of what they compute.
#pragma once

#include "kernels/quantize/quantize_list.h"
#include "kernels/select/top_k.h"
#include "kernels/signs/signs.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {

// words is [workers][PackedWords(n, 1)].
inline void VoteSigns(const Executor& executor, const uint32_t* words, int64_t workers, int64_t n,
                      float* out) {
  VoteSignsList(executor, words, workers, {{out, n}}, 1.0f);
}

// words is [workers][PackedWords(n, bits)], scales [workers][ceil(n / block)].
inline void DequantizeSum(const Executor& executor, const uint32_t* words, const float* scales,
                          int64_t workers, int64_t n, const Quantization& quantization,
                          float* out) {
  const Rows rows{words, scales, workers, PackedWords(n, quantization.bits),
                  CeilDiv(n, quantization.block)};
  DequantizeList(executor, rows, {{n, 0, 0, out}}, quantization, 1.0f);
}

inline void TopK(const Executor& executor, const float* x, int64_t n, int64_t k, float* values,
                 int32_t* indices) {
  TopKList(executor, {{x, nullptr, nullptr, n}}, 1.0f, {{k}, values, indices});
}

// Returns what is wrong with an index, or nothing.
inline std::string ScatterSum(const Executor& executor, const float* values, const int32_t* indices,
                              const int32_t* counts, int64_t workers, int64_t k, int64_t n,
                              float* out) {
  bool finite;
  return ScatterList(executor, {{out, n}}, {values, indices, counts, workers, {k}}, 1.0f, &finite);
}

}  // namespace grace
