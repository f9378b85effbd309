// Elements in four classes by their size, each with numbers of its own width (Li et al. 2018):
// nothing, a byte, a half of 16 bits, or the whole float.
//
// Classes are told by the biased exponent e of |acc|, given a least exponent l and a unit u:
// nothing for e < l, a byte below u + 7, a half below u + 15, else the float. A byte is a sign and
// 7 bits, a half a sign and 15 bits, in units of 2^(u - 127), what is below a unit being cut off.
//
// A tensor's payload has a room of words for its numbers, whatever their classes. l and u are those
// with the least expected error whose numbers fit (ChooseEdges in size_class_chunks.h). Room that
// is left takes elements of e = l - 1, as bytes: those of a window, which moves on from step to
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/compensate.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

// What a tensor's payload has room for: words, at least one. The origin is the least exponent that
// at most `outliers` elements reach.
struct Room {
  int64_t words, outliers;
};

// Where the parts of a list's payload begin. Those of a tensor are 2 words of tags for each 32
// elements, the class of an element as its bit in two planes; the words of its numbers, floats,
// then two halves in a word, then four bytes in a word; and four counts: the unit, and how many
// bytes, halves and floats there are.
struct ClassParts {
  uint32_t *tags, *numbers;
  int32_t* counts;
};
constexpr int64_t kClassCounts = 4;

// The lengths of the parts of one tensor, in words.
struct ClassLengths {
  ClassLengths() = default;
  ClassLengths(int64_t n, const Room& room)
      : tags(PackedWords(n, 2)), numbers(room.words), counts(kClassCounts) {}
  ClassLengths operator+(const ClassLengths& other) const {
    ClassLengths sum = *this;
    sum.tags += other.tags, sum.numbers += other.numbers, sum.counts += other.counts;
    return sum;
  }
  int64_t tags = 0, numbers = 0, counts = 0;
};

// The beginnings of all tensors' parts, and at last where they end.
std::vector<ClassLengths> ClassPlaces(const std::vector<int64_t>& sizes,
                                      const std::vector<Room>& rooms);

// Writes the payload of each source; words that are not used are 0. No exponent below the origin's
// less `bound`, 1 to 100, is sent. residual_out gets acc minus what was sent. Returns whether every
// acc is finite.
bool EncodeClasses(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, int32_t bound, const std::vector<Room>& rooms, uint64_t step,
                   const ClassParts& parts);

// total = (the sum of the workers' numbers, from zero, in their order, a denormal sum becoming 0) *
// factor; `parts` are rows of the lengths of a payload. Any bits are taken: units and counts that
// cannot be are those nearest that can, the floats' first, then the halves'; a number beyond its
// count is 0. Returns whether every total is finite.
bool DecodeClasses(const Executor& executor, const std::vector<DecodeOutput>& targets,
                   const std::vector<Room>& rooms, const ClassParts& parts, int64_t workers,
                   float factor);

}  // namespace grace

// For GPUs; base/device/library.h says what all launchers have in common.
extern "C" {

int grace_cuda_decode_classes(const grace::DecodeOutput* targets, int64_t count,
                              const grace::Room* rooms, const grace::ClassParts* parts,
                              int64_t workers, float factor, bool* finite, void* workspace,
                              size_t* bytes, void* stream);
int grace_cuda_encode_classes(const grace::EncodeInput* sources, int64_t count, float multiplier,
                              int32_t bound, const grace::Room* rooms, uint64_t step,
                              const grace::ClassParts* parts, bool* finite, void* workspace,
                              size_t* bytes, void* stream);

}  // extern "C"
