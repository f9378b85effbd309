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

// Of so many elements in turn each is added to a sum of its own.
constexpr int kSums = 16;
constexpr int32_t kSixth = 0x2aaaaaaa;                      // of 2^32
constexpr double kFractionOfTrits = 0x1p32 / 3486784401.0;  // 3^20

// What fields decode by: the bias makes all digits of a word positive, by half of what they hold.
constexpr uint32_t HalfOf(int32_t bits) { return bits == kTrits ? 0 : 1u << (bits - 1); }
constexpr uint32_t BiasOf(int32_t bits) {
  uint32_t bias = 0;
  for (int64_t d = 0; d < DigitsOf(bits); ++d) bias += HalfOf(bits) << (bits * d);
  return bias;
}

// One tensor of a list whose scale is wanted, or that is encoded.
struct Ternary {
  Accumulated source;
  int64_t n;
  // What an element is clipped to, and what a digit is worth.
  float own, scale;
  uint32_t* words;         // its part of the list's
  uint32_t variable_draw;  // of the key
};

// scales[i]: the largest magnitude of tensor i, but at most `clip` standard deviations of its
// elements, unless clip is 0 or the deviation is below 2^-16 of the root mean square. Below 2^-110
// a scale is 0. Returns whether all elements are finite.
//
// In double: of each 2048 elements sixteen sums, each of every sixteenth element, one after
// another; these added over adjacent pairs, then pairs of pairs; and so are the sums of all 2048s.
// The variance is the mean of squares less the square of the mean, a mean being a product with
// 1 / n.
bool TernaryScales(const Executor& executor, const std::vector<Ternary>& list, float clip,
                   float* scales);

// Digits of each tensor, in float: 0 where min(|x|, own) / scale + u < 1, u being the uniform
// number of the key's stream, else 1 with the sign of x. The division is a product with 1 / scale,
// 0 where the scale is below 2^-110. Denormals count as zero.
void TernaryEncode(const Executor& executor, const std::vector<Ternary>& list, int32_t bits,
                   const PhiloxKey& key);

// One tensor of a list to decode: its words begin so far into a worker's row, its scale is so far
// into the worker's scales.
struct TernaryDecoded {
  int64_t n, words_at, scale_at;
  float* total;
};

// The rows of all workers.
struct TernaryRows {
  const uint32_t* words;
  const float* scales;
  int64_t workers, words_stride, scales_stride;
};

// The sum over workers of digit * scale, from zero, in worker order, denormal sums being 0; times
// `factor`. A scale below 2^-110 counts as 0. At least one worker. Returns whether all totals are
// finite.
bool TernaryDecode(const Executor& executor, const TernaryRows& rows,
                   const std::vector<TernaryDecoded>& list, int32_t bits, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// What elements are clipped to and what digits are worth is on the device: own[i] and
// scales[i] stand for list[i].own and list[i].scale.
extern "C" {

int grace_cuda_ternary_decode(grace::TernaryRows rows, const grace::TernaryDecoded* list,
                              int64_t count, int32_t bits, float factor, bool* finite,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_ternary_encode(const grace::Ternary* list, int64_t count, const float* own,
                              const float* scales, int32_t bits, const grace::PhiloxKey* key,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_ternary_scales(const grace::Ternary* list, int64_t count, float clip, float* scales,
                              bool* finite, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
