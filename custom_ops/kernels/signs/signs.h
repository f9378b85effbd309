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

// One tensor of a list; `words` are its own part of the list's.
struct Signed {
  Accumulated source;
  int64_t n;
  uint32_t* words;
};

// PackSigns of the sources. Returns whether all of them are finite.
bool PackSignsList(const Executor& executor, const std::vector<Signed>& list);

// One tensor of a list, whose words are so far into a worker's row.
struct Voted {
  int64_t n;
  int64_t words_at;
  float* total;
};

// The sign of the sum of the workers' signs of each tensor, 0 for a tie, times `factor`. words is
// [workers][stride].
void VoteSignsList(const Executor& executor, const uint32_t* words, int64_t workers, int64_t stride,
                   const std::vector<Voted>& list, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_sign_list(const grace::Signed* list, int64_t count, bool* finite, void* workspace,
                         size_t* bytes, void* stream);
int grace_cuda_vote_list(const uint32_t* words, int64_t workers, int64_t stride,
                         const grace::Voted* list, int64_t count, float factor, void* workspace,
                         size_t* bytes, void* stream);

}  // extern "C"
