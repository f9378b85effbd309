// Floats to -1, 0 and 1 with one scale for each tensor, packed into words, and back.
//
// A word holds D digits. Words come in groups of 16, and digit d of word j of a group is element
// 16 d + j of the group. The last group of a tensor has as many words as it needs, w; digit d of
// word j is its element w d + j. So a tensor of n elements takes ceil(n / D) words. Digits beyond
// the last element are zero.
//
// Trits: D = 20, and a word is the nearest integer to 2^32 times the balanced ternary fraction
// 0.t0 t1 ... t19 of its digits, -1/2 to 1/2. A digit is read by a comparison with 1/6, and the
// next one after a multiplication by 3, which drops the first.
// Fields of b bits, 2 to 16: D = 32 / b, and a word is the sum of t_d 2^(b d). Words of several
// workers may be added up as long as the sums of digits stay below 2^(b - 1) in magnitude.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/base/words.h"

namespace grace {

constexpr int64_t kWordsOfGroup = 16;
constexpr int32_t kTrits = 0;  // instead of a number of bits

constexpr int64_t DigitsOf(int32_t bits) { return bits == kTrits ? 20 : 32 / bits; }
constexpr int64_t TernaryWords(int64_t n, int32_t bits) { return CeilDiv(n, DigitsOf(bits)); }

// The number of sums over which consecutive elements are distributed in turn.
constexpr int kSums = 16;
constexpr int32_t kSixth = 0x2aaaaaaa;                      // of 2^32
constexpr double kFractionOfTrits = 0x1p32 / 3486784401.0;  // 3^20

// The constants for decoding fields: the bias, half of a field's range, makes all digits positive.
constexpr uint32_t HalfOf(int32_t bits) { return bits == kTrits ? 0 : 1u << (bits - 1); }
constexpr uint32_t BiasOf(int32_t bits) {
  uint32_t bias = 0;
  for (int64_t d = 0; d < DigitsOf(bits); ++d) bias += HalfOf(bits) << (bits * d);
  return bias;
}

// scales[i]: the largest magnitude of the acc of source i, but at most `clip` standard deviations
// of its elements, unless clip is 0 or the deviation is below 2^-16 of the root mean square. Below
// 2^-110 a scale is 0. Returns whether every acc is finite.
//
// In double: of each 2048 elements sixteen sums, each of every sixteenth element, one after
// another; these added over adjacent pairs, then pairs of pairs; and so are the sums of all 2048s.
// The variance is the mean of squares less the square of the mean, a mean being a product with
// 1 / n.
bool TernaryScales(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, float clip, float* scales);

// Digits of the acc of each source, one source's words after another's; in float: 0 where
// min(|acc|, clips[i]) / scales[i] + u < 1, u being the uniform number of the stream of keys[i],
// else 1 with the sign of acc. The division is a product with 1 / scale, 0 where the scale is below
// 2^-110. Denormals count as zero.
void TernaryEncode(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const float* clips, const float* scales, int32_t bits,
                   const std::vector<PhiloxKey>& keys, uint32_t* words);

// The rows of all workers.
struct TernaryRows {
  const uint32_t* words;  // [workers][words of all targets]
  const float* scales;    // [workers][targets]
  int64_t workers;
};

// The sum over workers of digit * scale, from zero, in worker order, denormal sums being 0; times
// `factor`. A scale below 2^-110 counts as 0. At least one worker. Returns whether all totals are
// finite.
bool TernaryDecode(const Executor& executor, const TernaryRows& rows,
                   const std::vector<DecodeOutput>& targets, int32_t bits, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_ternary_decode(grace::TernaryRows rows, const grace::DecodeOutput* list,
                              int64_t count, int32_t bits, float factor, bool* finite,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_ternary_encode(const grace::EncodeInput* list, int64_t count, float multiplier,
                              const float* clips, const float* scales, int32_t bits,
                              const grace::PhiloxKey* keys, uint32_t* words, void* workspace,
                              size_t* bytes, void* stream);
int grace_cuda_ternary_scales(const grace::EncodeInput* list, int64_t count, float multiplier,
                              float clip, float* scales, bool* finite, void* workspace,
                              size_t* bytes, void* stream);

}  // extern "C"
