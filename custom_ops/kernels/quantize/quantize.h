// Floats to codes of a few bits and back, with one scale per block of elements.
#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"

namespace grace {

// 1 <= levels, 2 * levels + 1 <= 2^bits, 2 <= bits <= 16, block >= 1.
struct Quantization {
  int32_t levels;
  int32_t bits;
  int64_t block;
  // Levels run from the minimum of a block to its maximum, in `levels` = 2^bits - 1 steps. Its
  // scale is two floats: half the distance, c, and the minimum, m. For functions on lists alone.
  bool minmax = false;

  // How many levels c is worth.
  float Half() const { return minmax ? 0.5f * levels : static_cast<float>(levels); }
  // Whether coarse words of philox.h round. A level below 2^7 and 17 bits of a fraction fit in a
  // float, so the bias is at most 2^-17 of a level.
  bool Coarse() const { return levels <= 127; }
  // The floats of a block's scale.
  int64_t Floats() const { return minmax ? 2 : 1; }
};

// With s = levels and c the scale of the element's block, in float without fused operations:
//   a = |x| * (s / c), 0 where c < 2^-110; denormal x and denormal s / c count as 0
//   q = min(floor(a + u), s) with u from the key's stream, or min(rint(a), s) where key is null;
//     u = 2^-24 * (word >> 8), of a coarse word of philox.h where s <= 127
//   code = s - q where the sign bit of x is set, s + q elsewhere
// Where an intermediate value is NaN or infinite, q = s. For minmax, with s = 2^bits - 1,
//   a = (x - m) * (s / 2 / c), q as above, code = q, which decodes to m + q * (c / (s / 2))
// where x, m, x - m and the decoded value count as 0 if denormal.
// words is [PackedWords(n, bits)], scales [ceil(n / block)].
void Quantize(const Executor& executor, const float* x, const float* scales, int64_t n,
              const Quantization& quantization, const PhiloxKey* key, uint32_t* words);

}  // namespace grace
