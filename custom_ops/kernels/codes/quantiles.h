// Buckets of about equally many elements, and the mean of each: ids of few bits instead of floats.
//
// Zeros and denormals have a bucket of their own; a value that is not finite counts as the largest
// number of its sign. Elements of one sign whose magnitudes agree in their upper 16 bits make a
// bin. With q buckets, in q / span runs of `span`, and N negative and P positive elements,
//
//   q_N = span * the nearest integer to (q / span) N / (N + P), a half up; at least one run where
//         N is not 0, and so few that the zeros and the positive elements, where there are any,
//         have one bucket each
//   id = floor(b q_N / N)               of a negative bin with b elements in the bins of its sign
//                                       below it in magnitude
//        q_N                            of zeros
//        q_N + z + floor(b (q - q_N - z) / P)    of a positive one; z is 1 where there are zeros
//
// The mean of a bucket is exact but for a truncation: with E the largest biased exponent in it, the
// sum over its bins of the integer floor(2^(7 + e - E) * the sum of the bin's 24-bit significands),
// divided in double by the number of elements, times 2^(E - 157), rounded to float. A bucket
// without elements has mean 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

struct Quantiles {
  int32_t buckets;  // 2 to 256
  int32_t span;     // a divisor of `buckets`; 1 needs 3 buckets, others twice as many as they are
};

// Bins, by the upper 16 bits of their elements; a row has those of one sign and exponent.
constexpr int64_t kBins = 1 << 16;
constexpr int64_t kRow = 128, kRows = kBins / kRow;

// The bits of an id.
inline int32_t IdBits(int32_t buckets) {
  int32_t bits = 1;
  while (buckets > 1 << bits) ++bits;
  return bits;
}

// Writes the ids of each source as bit planes and the means of its buckets, those of all sources
// one after another; residual_out gets acc minus the means. Returns whether every acc is finite.
bool EncodeQuantiles(const Executor& executor, const std::vector<EncodeInput>& sources,
                     float multiplier, Quantiles quantiles, uint32_t* words, float* means);

// The rows of all workers, at least one.
struct QuantileRows {
  const uint32_t* words;  // [workers][words of all targets]
  const float* means;     // [workers][buckets of all targets]
  int64_t workers;
};

// total = (the sum of the workers' means, from zero, in their order, a denormal sum becoming 0) *
// factor. An id beyond the last bucket counts as the last. Returns whether every total is finite.
bool DecodeQuantiles(const Executor& executor, const std::vector<DecodeOutput>& targets,
                     const QuantileRows& rows, int32_t buckets, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_decode_quantiles(const grace::DecodeOutput* targets, int64_t count,
                                const grace::QuantileRows* rows, int32_t buckets, float factor,
                                bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_quantiles(const grace::EncodeInput* sources, int64_t count, float multiplier,
                                grace::Quantiles quantiles, uint32_t* words, float* means,
                                bool* finite, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
