// One bit an element, its sign, and levels: the values to which the bits decode, means of elements.
//
// With one side, a cell has one level, the mean of |x|: bit 1 decodes to it, and bit 0 to its
// negative. With two sides it has two, each the mean of the elements with that bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/signs/cells.h"

namespace grace {

// Where the parts of one tensor's payload are. Without a second side, `low` is null and `high` is
// the only level.
struct ScaledSigns {
  uint32_t* words;  // as PackSigns
  float* low;
  float* high;
};

// Signs and levels of the accs of the sources; residual_out gets their error. Sums are in double:
// those of blocks over chunks of kChunk elements, those of columns over chunks of kColumnRows rows.
// In a chunk, filled up with zeros, the upper half is added to the lower half until one number is
// left, and the chunks' sums are added likewise. A denormal counts as 0, and so does a level below
// 2^-110.
// Returns whether all accs are finite.
bool ScaledSignList(const Executor& executor, const std::vector<EncodeInput>& sources,
                    float multiplier, const std::vector<Cells>& cells,
                    const std::vector<ScaledSigns>& parts);
constexpr int64_t kColumnRows = 32;
// Columns that are summed at a time.
constexpr int64_t kStrip = kChunk / kColumnRows;

// The rows of all workers, with the words and levels of each. With one side `low` is null.
struct ScaledRows {
  const uint32_t* words;
  const float *low, *high;
  int64_t workers, words_stride, levels_stride;
};

// The sums over the workers of the decoded signs, times `factor`: ((0 + d0) + d1) + ... in order of
// the workers; a denormal sum counts as 0. Returns whether all totals are finite.
bool SumScaledSignList(const Executor& executor, const ScaledRows& rows,
                       const std::vector<Cells>& cells, const std::vector<DecodeOutput>& targets,
                       float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_scaled_sign_list(const grace::EncodeInput* sources, int64_t count, float multiplier,
                                const grace::Cells* cells, const grace::ScaledSigns* parts,
                                bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_sum_scaled_sign_list(const grace::ScaledRows* rows, const grace::Cells* cells,
                                    int64_t count, const grace::DecodeOutput* targets, float factor,
                                    bool* finite, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
