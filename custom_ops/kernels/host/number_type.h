// How numbers of a type lie in shared memory, and how they are added up there.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace grace {

enum class NumberType {
  kFloat,
  kFloatAsBfloat16,  // float outside of the shared memory, bfloat16 in it
  kFloat16,
  kBfloat16,
  kDouble,
  kInt32,
  kInt64
};

// Numbers of one type; each function takes at most kHostBlock of them.
struct Adder {
  int64_t own_bytes, shared_bytes;  // of a number outside of the shared memory, and in it
  // Null where both are the same.
  void (*pack)(const void* own, int64_t count, void* shared);
  void (*unpack)(const void* shared, int64_t count, void* own);
  // The sums of these parts, in their order. Numbers of 16 bits are added up as floats and rounded
  // once; integers wrap around. `sum` is none of the parts.
  void (*add)(const void* const* parts, int count, int64_t n, void* sum);
};

// Few enough numbers to stay in the first-level cache.
constexpr int64_t kHostBlock = 2048;

const Adder& AdderOf(NumberType type);

}  // namespace grace
