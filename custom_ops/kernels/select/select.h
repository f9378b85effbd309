// The exact choice of the largest among some elements of a tensor.
#pragma once

#include <array>
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

  // These elements: a copy of them, or they themselves.
  void Hold(const int32_t* from_indices, const uint32_t* from_bits, int64_t size, bool copy) {
    if (copy) {
      own_indices.assign(from_indices, from_indices + size);
      own_bits.assign(from_bits, from_bits + size);
    }
    count = size;
    indices = copy ? own_indices.data() : from_indices;
    bits = copy ? own_bits.data() : from_bits;
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

// The bound of the k largest keys; they are at least k. All keys must be at least `least`. Where it
// is not 0, most should be close to it: the bound is then found in one pass by one thread.
Bound Largest(const Executor& executor, Stretches stretches, int64_t k, uint32_t least);

// Where the sent elements go to, and the tensor that gets the rest.
struct Sent {
  float* values;
  int32_t* indices;
  float* residual_out;  // null: no residual
  bool cleared;  // residual_out holds 0 at every element of the stretches, and not their values
};

// A bound for all elements, or one for those of each sign, the positive ones first.
template <size_t kSides>
using Bounds = std::array<Bound, kSides>;

// Sends the elements within their bound, in order; residual_out gets value - value at them, and
// zeros keep their sign, as if what was sent were subtracted. Returns how many they are.
template <size_t kSides>
int64_t Send(const Executor& executor, Stretches stretches, const Bounds<kSides>& bounds,
             const Sent& sent);
extern template int64_t Send<1>(const Executor&, Stretches, const Bounds<1>&, const Sent&);
extern template int64_t Send<2>(const Executor&, Stretches, const Bounds<2>&, const Sent&);

}  // namespace grace
