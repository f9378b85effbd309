// Stores lists of tensors in 16 bits between steps: bfloat16, rounded at random.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/philox.h"

namespace grace {

// One tensor of a list and its bfloat16 numbers.
struct Narrowed {
  const float* x;
  uint16_t* halves;
  int64_t n;
  uint32_t variable_draw;  // of the key
};

// halves = the upper half of bits(x) + (w >> 16), with w the coarse words of the tensor's stream;
// or of bits(x) where that would be infinite or NaN.
void ToHalvesList(const Executor& executor, const std::vector<Narrowed>& list,
                  const PhiloxKey& key);

struct Widened {
  const uint16_t* halves;
  float* x;
  int64_t n;
};

// x = the float of which a half has the upper bits; the others are zero.
void FromHalvesList(const Executor& executor, const std::vector<Widened>& list);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_from_halves_list(const grace::Widened* list, int64_t count, void* workspace,
                                size_t* bytes, void* stream);
int grace_cuda_to_halves_list(const grace::Narrowed* list, int64_t count,
                              const grace::PhiloxKey* key, void* workspace, size_t* bytes,
                              void* stream);

}  // extern "C"
