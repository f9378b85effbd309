// Finds faults in the indices that workers sent, by many threads at once.
#pragma once

#include "kernels/base/device/cuda.h"

namespace grace {

// The reported fault is that of the first faulty tensor, of its first faulty worker. An index
// outside the tensor comes before indices that do not ascend, then the first place counts. Earlier
// faults are smaller numbers; the complement is stored, so that 0 means no fault.
class FirstFault {
 public:
  // `row` counts the workers of all tensors: tensor * workers + worker. `place` is that among the
  // worker's indices into the tensor.
  __device__ void Note(int64_t row, bool outside, int32_t place) {
    const unsigned long long order = static_cast<unsigned long long>(row) << 32 |
                                     (outside ? 0u : 1u << 31) | static_cast<uint32_t>(place);
    atomicMax(&complement_, ~order);
  }

  __device__ bool Any() const { return complement_ != 0; }
  __device__ int64_t Row() const { return ~complement_ >> 32; }
  __device__ bool Outside() const { return (~complement_ >> 31 & 1) == 0; }
  __device__ int64_t Place() const { return ~complement_ & kMagnitude; }

 private:
  unsigned long long complement_;
};

constexpr int64_t kFaultWords = sizeof(FirstFault) / 4;

// Records a fault of indices[place]; returns whether it is inside its tensor of n elements.
__device__ inline bool CheckIndex(const int32_t* indices, int32_t place, int64_t n, int64_t row,
                                  FirstFault* fault) {
  const int32_t index = indices[place];
  const bool inside = index >= 0 && index < n;
  if (!inside || (place > 0 && indices[place - 1] >= index)) fault->Note(row, !inside, place);
  return inside;
}

}  // namespace grace
