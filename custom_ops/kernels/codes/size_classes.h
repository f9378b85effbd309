// Elements in four classes by their size, each with numbers of its own width (Li et al. 2018):
// nothing, a byte, a half of 16 bits, or the whole float.
//
// Classes are told by the biased exponent e of |acc|, given a bound of 2^-b and a shift s: nothing
// for e < LeastByte() + s, a byte below LeastHalf() + s, a half below LeastWhole() + s, else the
// float. A byte is a sign and 7 bits of a fraction of 2^(LeastHalf() + s - 127), a half a sign and
// 15 bits of a fraction of 2^(LeastWhole() + s - 127), both cut off: the error is below 2^(s - b).
//
// A tensor's payload has room for a fixed number of bytes, halves and floats. The shift is the
// least with which the halves and floats fit. Of more bytes than fit, those of a window are sent,
// which moves on from step to step; the other elements count as nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

// The bound is 2^-b, 1 <= b <= 100.
struct ErrorBound {
  int32_t b;
  GRACE_BOTH int32_t LeastByte() const { return 127 - b; }
  GRACE_BOTH int32_t LeastHalf() const { return 127 + (b > 7 ? 7 - b : 0); }
  GRACE_BOTH int32_t LeastWhole() const { return 127 + (b > 15 ? 15 - b : 0); }
  // With it everything fits: there are no halves and no floats.
  GRACE_BOTH int32_t LargestShift() const { return 256 - LeastHalf(); }
};

// What a tensor's payload has room for.
struct Room {
  int64_t bytes, halves, wholes;
};

// Where the parts of a list's payload begin. Those of a tensor are 2 words of tags for each 32
// elements, the class of an element as its bit in two planes; four bytes in a word; two halves in a
// word; floats; and four counts: the shift, and how many elements were of each class but nothing.
struct ClassParts {
  uint32_t *tags, *bytes, *halves;
  float* wholes;
  int32_t* counts;
};
constexpr int64_t kClassCounts = 4;

// The lengths of the parts of one tensor, in words.
struct ClassLengths {
  ClassLengths() = default;
  ClassLengths(int64_t n, const Room& room)
      : tags(PackedWords(n, 2)),
        bytes(CeilDiv(room.bytes, 4)),
        halves(CeilDiv(room.halves, 2)),
        wholes(room.wholes),
        counts(kClassCounts) {}
  ClassLengths operator+(const ClassLengths& other) const {
    ClassLengths sum = *this;
    sum.tags += other.tags, sum.bytes += other.bytes, sum.halves += other.halves;
    sum.wholes += other.wholes, sum.counts += other.counts;
    return sum;
  }
  int64_t tags = 0, bytes = 0, halves = 0, wholes = 0, counts = 0;
};

// The beginnings of all tensors' parts, and at last where they end.
std::vector<ClassLengths> ClassPlaces(const std::vector<int64_t>& sizes,
                                      const std::vector<Room>& rooms);

// Writes the payload of each source; numbers that are not used are 0. residual_out gets acc minus
// what was sent. Returns whether every acc is finite.
bool EncodeClasses(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, ErrorBound bound, const std::vector<Room>& rooms,
                   uint64_t step, const ClassParts& parts);

// total = (the sum of the workers' numbers, from zero, in their order, a denormal sum becoming 0) *
// factor; `parts` are rows of the lengths of a payload. Any bits are taken: a number beyond its
// room counts as 0. Returns whether every total is finite.
bool DecodeClasses(const Executor& executor, const std::vector<DecodeOutput>& targets,
                   ErrorBound bound, const std::vector<Room>& rooms, const ClassParts& parts,
                   int64_t workers, float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_decode_classes(const grace::DecodeOutput* targets, int64_t count,
                              grace::ErrorBound bound, const grace::Room* rooms,
                              const grace::ClassParts* parts, int64_t workers, float factor,
                              bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_classes(const grace::EncodeInput* sources, int64_t count, float multiplier,
                              grace::ErrorBound bound, const grace::Room* rooms, uint64_t step,
                              const grace::ClassParts* parts, bool* finite, void* workspace,
                              size_t* bytes, void* stream);

}  // extern "C"
