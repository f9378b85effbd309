// Whether every element is a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

bool AllFinite(const Executor& executor, const float* x, int64_t n);
bool AllFinite(const Executor& executor, const std::vector<Floats>& list);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
// nan_unless makes all elements of the list NaN where *finite, on the device, is false.
extern "C" {

int grace_cuda_all_finite(const grace::Floats* list, int64_t count, bool* finite, void* workspace,
                          size_t* bytes, void* stream);
int grace_cuda_nan_unless_list(const grace::DecodeOutput* list, int64_t count, const bool* finite,
                               void* workspace, size_t* bytes, void* stream);

}  // extern "C"
