// The exact choice of the largest among some elements of a tensor.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

// Some elements of a tensor in order of index: those at `indices`, or where it is null, all from
// `first` on.
struct Stretch {
  int64_t first = 0;
  int64_t count = 0;
  const uint32_t* bits = nullptr;
  const int32_t* indices = nullptr;
  std::vector<int32_t> own_indices;
  std::vector<uint32_t> own_bits;

  int32_t Index(int64_t i) const { return indices ? indices[i] : static_cast<int32_t>(first + i); }
  uint32_t Bits(int64_t i) const {
    uint32_t value;  // of floats in place, which are only ever read through memcpy
    std::memcpy(&value, bits + i, sizeof value);
    return value;
  }
  uint32_t Key(int64_t i) const { return Bits(i) & kMagnitude; }

  void Own(const int32_t* from_indices, const uint32_t* from_bits, int64_t size) {
    own_indices.assign(from_indices, from_indices + size);
    own_bits.assign(from_bits, from_bits + size);
    count = size;
    indices = own_indices.data();
    bits = own_bits.data();
  }
};

// A list of stretches in order of index that others hold.
struct Stretches {
  const Stretch* first;
  int64_t size;
  const Stretch& operator[](int64_t s) const { return first[s]; }
};

int64_t Total(Stretches stretches);

// All of x, in place.
std::vector<Stretch> Whole(const float* x, int64_t n);

// Which elements are sent: those with a key above `key`, and the first `ties` of those equal to it,
// but none with a key above `most`.
struct Bound {
  uint32_t key;
  int64_t ties;
  uint32_t most;
};

// The bound of the k largest keys; they are at least k.
Bound Largest(const Executor& executor, Stretches stretches, int64_t k);

// As Largest, in one pass by one thread. All keys must be at least `least`. It is fast where most
// keys are close to `least`.
Bound LargestFrom(Stretches stretches, uint32_t least, int64_t k);

// Where the sent elements go to, and the tensor that gets the rest.
struct Sent {
  float* values;
  int32_t* indices;
  float* residual_out;  // null: no residual
  bool cleared;  // residual_out holds 0 at every element of the stretches, and not their values
};

// Sends the elements within the bound, in order; residual_out gets value - value at them, and zeros
// keep their sign, as in a subtraction. Returns the number of sent elements.
int64_t Send(const Executor& executor, Stretches stretches, Bound bound, const Sent& sent);

}  // namespace grace
