// Casts lists of tensors to numbers of 16 bits, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

enum class Half { kFloat16, kBfloat16 };

// halves gets acc = x * multiplier + residual rounded to nearest, ties to even, one tensor after
// another; what is too large becomes infinite, and every NaN stays a NaN. residual_out gets acc
// minus what was sent. Returns whether every acc is finite.
bool CastList(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              Half type, uint16_t* halves);

// total = half * factor. Returns whether every total is finite.
bool UncastList(const Executor& executor, const std::vector<DecodeOutput>& targets, Half type,
                const uint16_t* halves, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_cast_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                         grace::Half type, uint16_t* halves, bool* finite, void* workspace,
                         size_t* bytes, void* stream);
int grace_cuda_uncast_list(const grace::DecodeOutput* list, int64_t count, grace::Half type,
                           const uint16_t* halves, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);

}  // extern "C"
