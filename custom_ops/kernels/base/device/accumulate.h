// acc = x * multiplier + residual on the device, as compensate.h has it.
#pragma once

#include "kernels/base/device/cuda.h"

namespace grace {

// A tensor as kernels read it. A multiplier of 1 and a residual of null leave out the product and
// the sum, so that with both the bits stay as they are.
struct DeviceInput {
  const float* x;
  const float* residual;

  __device__ float At(int64_t i, float multiplier) const {
    float acc = x[i];
    if (multiplier != 1.0f) acc = MulZ(acc, multiplier);
    return residual ? AddZ(acc, residual[i]) : acc;
  }

  // Sets acc[j], for each j below kCount, to At(place(j)) where inside(j) is true, and to
  // `otherwise` elsewhere. All elements are read before any of them is multiplied. Calls of At in a
  // row would be slower: At contains branches, so a thread would wait for one element before it
  // reads the next.
  template <int kCount, class Inside, class Place>
  __device__ void Gather(const Inside& inside, const Place& place, float multiplier,
                         float otherwise, float* acc) const {
    float added[kCount];
    Read<kCount>(inside, place, acc, added);
    Compensate<kCount>(multiplier, acc, added);
#pragma unroll
    for (int j = 0; j < kCount; ++j) acc[j] = inside(j) ? acc[j] : otherwise;
  }

  // The two parts of Gather. A thread that has other work between them does it while the memory
  // answers. Where inside(j) is false, zeros stand for what would be read. Without a residual
  // `added` is not set.
  template <int kCount, class Inside, class Place>
  __device__ void Read(const Inside& inside, const Place& place, float* acc, float* added) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) acc[j] = inside(j) ? x[place(j)] : 0.0f;
    if (!residual) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j) added[j] = inside(j) ? residual[place(j)] : 0.0f;
  }
  template <int kCount>
  __device__ void Compensate(float multiplier, float* acc, const float* added) const {
    if (multiplier != 1.0f) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) acc[j] = MulZ(acc[j], multiplier);
    }
    if (!residual) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j) acc[j] = AddZ(acc[j], added[j]);
  }
};

// Elements [begin, begin + n) of a tensor, kEach for each thread of a block: thread t of warp w has
// those at 256 w + 32 j + t % 32, so that a warp reads 32 neighbours at once. Elements from n on
// are `otherwise`.
__device__ inline int PlaceOf(int j) { return (WarpOf() * kEach + j) * kWarp + Lane(); }

__device__ inline void LoadPiece(const DeviceInput& source, float multiplier, int64_t begin,
                                 int64_t n, float otherwise, float* acc) {
  source.Gather<kEach>([=](int j) { return PlaceOf(j) < n; },
                       [=](int j) { return begin + PlaceOf(j); }, multiplier, otherwise, acc);
}

// Makes `finite` false where one of the first n of a piece's acc is not. All threads that find one
// write the same, so no order matters.
__device__ inline void NotePiece(const float* acc, int64_t n, bool* finite) {
  bool all = true;
#pragma unroll
  for (int j = 0; j < kEach; ++j) all &= PlaceOf(j) >= n || IsFinite(acc[j]);
  if (!all) *finite = false;
}

}  // namespace grace
