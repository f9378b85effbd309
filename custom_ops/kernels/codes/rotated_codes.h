// Codes of a few bits for the elements of rotated blocks (Vargaftik et al. 2022, EDEN).
//
// A block x of P elements, a power of two, becomes y = H D f x. D flips the signs of the elements
// whose bit of a random stream is set, f is a power of two, and H the Walsh-Hadamard transform: for
// the distances P / 2, P / 4, ..., 1, each pair of elements (a, b) of that distance becomes
// (a + b, a - b). The elements of y are about normal, and are rounded to the best numbers for that.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"
#include "kernels/base/words.h"

namespace grace {

// A block whose largest magnitude is below this is sent as zeros.
constexpr float kLeastRotated = 0x1p-80f;
// A smaller scale counts as 0: so no sum of decoded numbers is denormal.
constexpr float kLeastRotatedScale = 0x1p-95f;
// Blocks are multiplied such that their largest magnitude has this exponent.
constexpr int32_t kRotatedExponent = 40;
constexpr int64_t kMostRotated = 2048;
constexpr int32_t kMostCentroids = 128;

// How a list is encoded.
struct RotatedCode {
  int32_t bits;        // 1 to 8; the top bit of a code is the sign
  int32_t resolution;  // magnitudes are told apart in steps of 1 / resolution, a power of two
  int64_t block;       // elements, a power of two from 32 to kMostRotated
  int32_t least;       // 1: scales of least error, 0: unbiased
  int32_t count;       // of the centroids, 2^(bits - 1)
  float centroids[kMostCentroids];
  // limits[k]: from so many steps on a magnitude is nearer to centroid k + 1 than to centroid k.
  int32_t limits[kMostCentroids];

  RotatedCode() = default;
  RotatedCode(int32_t bits, int32_t resolution, int64_t block, bool least,
              const std::vector<float>& numbers)
      : bits(bits),
        resolution(resolution),
        block(block),
        least(least),
        count(1 << (bits - 1)),
        centroids{},
        limits{} {
    for (int32_t k = 0; k < count; ++k) centroids[k] = numbers[k];
    for (int32_t k = 0; k + 1 < count; ++k) {
      const double half = (static_cast<double>(numbers[k]) + numbers[k + 1]) / 2;
      limits[k] = static_cast<int32_t>(std::ceil(half * resolution));
    }
  }

  // The largest number of steps that is told apart.
  GRACE_BOTH int32_t Last() const { return count > 1 ? limits[count - 2] : 0; }
  // The elements of the block that begins `before` the end of a tensor: the last block is filled up
  // with zeros to a power of two, 32 at least.
  GRACE_BOTH int64_t SizeAt(int64_t before) const {
    if (before >= block) return block;
    int64_t size = kGroup;
    while (size < before) size *= 2;
    return size;
  }
  GRACE_BOTH int64_t WordsOf(int64_t n) const {
    const int64_t rest = n % block;
    return (n - rest + (rest ? SizeAt(rest) : 0)) / kGroup * bits;
  }
  GRACE_BOTH int64_t ScalesOf(int64_t n) const { return (n + block - 1) / block; }
};

// Writes codes and scales of all sources, one source after another. keys[i] names the signs of
// source i. residual_out gets acc minus what its codes stand for. With m the largest |acc| of a
// block, 2^e <= m < 2^(e + 1), and f = 2^(40 - e),
//   q = the sum of y y        A sum adds up 32 numbers, those of every 32nd element one after
//                             another, and then the upper half of the 32 to the lower, and so on.
//   steps = rint(|y| (resolution / sqrt(q / P)))         the root in double, rounded to float
//   code = the limits that are at most `steps`, and the sign bit where y < 0
//   scale = q / (A P f), or A / (C P f), in double       A the sum of c |y|, C the sum of c c
// Where m is below 2^-80, the scale and the codes are 0; where it is not finite, the scale is NaN
// and the codes are 0. Returns whether every acc is finite.
bool EncodeRotated(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<PhiloxKey>& keys, const RotatedCode& code,
                   uint32_t* words, float* scales);

// The rows of all workers, at least one.
struct RotatedRows {
  const uint32_t* words;  // [workers][words of all targets]
  const float* scales;    // [workers][scales of all targets]
  int64_t workers;
};

// Adds up scale * (+-centroid) of all workers from zero, in their order, transforms the sums back,
// D H, where denormal results become 0, and multiplies by `factor`. Any bits are taken. Returns
// whether every total is finite.
bool DecodeRotated(const Executor& executor, const std::vector<DecodeOutput>& targets,
                   const RotatedRows& rows, const std::vector<PhiloxKey>& keys,
                   const RotatedCode& code, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common. `code` is the host's.
extern "C" {

int grace_cuda_decode_rotated(const grace::DecodeOutput* list, int64_t count,
                              grace::RotatedRows rows, const grace::PhiloxKey* keys,
                              const grace::RotatedCode* code, float factor, bool* finite,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_rotated(const grace::EncodeInput* list, int64_t count, float multiplier,
                              const grace::PhiloxKey* keys, const grace::RotatedCode* code,
                              uint32_t* words, float* scales, bool* finite, void* workspace,
                              size_t* bytes, void* stream);

}  // extern "C"
