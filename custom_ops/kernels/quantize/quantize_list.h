// A list of tensors to codes and back, each in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/words.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scales.h"

namespace grace {

// The parameters of a list's encoding. A block of 0 elements is the whole of each tensor. The norm
// is kMinMax if and only if `quantization.minmax` is true.
struct ListCode {
  Quantization quantization;
  Norm norm;

  // The elements of a block of a tensor of n.
  int64_t BlockOf(int64_t n) const {
    return quantization.block ? quantization.block : (n > 0 ? n : 1);
  }
  int64_t WordsOf(int64_t n) const { return PackedWords(n, quantization.bits); }
  int64_t BlocksOf(int64_t n) const { return CeilDiv(n, BlockOf(n)); }
  // How many floats the scales take.
  int64_t ScalesOf(int64_t n) const { return quantization.Floats() * BlocksOf(n); }
};

// One tensor of a list. `words` and `scales` are its own parts of the list's.
struct Encoded {
  Accumulated source;
  int64_t n;
  uint32_t* words;
  float* scales;
  float* residual_out;     // null: not wanted
  uint32_t variable_draw;  // of the key
  uint32_t stratum = 0;    // added to every random word
};

// BlockScales and Quantize of the sources; residual_out gets the error of the codes. Random words
// come from the streams of `key`; null rounds to the nearest. Returns whether all sources are
// finite.
bool QuantizeList(const Executor& executor, const std::vector<Encoded>& list, const ListCode& code,
                  const PhiloxKey* key);

// One tensor of n elements of a list, and the offsets of its words and scales in a worker's row.
struct Decoded {
  int64_t n;
  int64_t words_at, scales_at;
  float* total;
};

// The rows of all workers, of equal length.
struct Rows {
  const uint32_t* words;
  const float* scales;
  int64_t workers, words_stride, scales_stride;
};

// The sum over workers of (code - s) * (c / s), from zero, in worker order, times `factor`;
// denormal partial sums become 0. At least one worker. Any bits are taken: codes above 2 s count as
// 2 s, and where c < 2^-110, so where it is negative, c / s is 0. Returns whether all totals are
// finite.
bool DequantizeList(const Executor& executor, const Rows& rows, const std::vector<Decoded>& list,
                    const Quantization& quantization, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// `key` is the host's.
extern "C" {

int grace_cuda_dequantize_list(grace::Rows rows, const grace::Decoded* list, int64_t count,
                               grace::Quantization quantization, float factor, bool* finite,
                               void* workspace, size_t* bytes, void* stream);
int grace_cuda_quantize_list(const grace::Encoded* list, int64_t count, grace::ListCode code,
                             const grace::PhiloxKey* key, bool* finite, void* workspace,
                             size_t* bytes, void* stream);

}  // extern "C"
