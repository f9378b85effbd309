// One bit an element: its sign.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/parallel.h"

namespace grace {

// words[PackedWords(n, 1)]: bit 1 where x >= 0 (zero of either sign: 1, NaN: 0).
void PackSigns(const Executor& executor, const float* x, int64_t n, uint32_t* words);

// The words of a tensor of n elements.
constexpr int64_t SignWords(int64_t n) { return PackedWords(n, 1); }

// PackSigns of the accs of the sources, which keep nothing, one source's words after another's.
// Returns whether every acc is finite.
bool PackSignsList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, uint32_t* words);

// The sign of the sum of the workers' signs of each tensor, 0 for a tie, times `factor`. words is
// [workers][words of all targets].
void VoteSignsList(const Executor& executor, const uint32_t* words, int64_t workers,
                   const std::vector<DecodeOutput>& targets, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_sign_list(const grace::EncodeInput* list, int64_t count, float multiplier,
                         uint32_t* words, bool* finite, void* workspace, size_t* bytes,
                         void* stream);
int grace_cuda_vote_list(const uint32_t* words, int64_t workers, const grace::DecodeOutput* list,
                         int64_t count, float factor, void* workspace, size_t* bytes, void* stream);

}  // extern "C"
