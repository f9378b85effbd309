// The operations kernels are written in, one backend for each instruction set.
//
// A kernel is written once, in a header *-inl.h, and compiled for every instruction set of the
// platform by each_isa.h: in the namespace of each, the names below mean that backend's vectors.
//
//   F, U      kLanes floats; kLanes integers of 32 bits, or the bits of kLanes floats
//   M         a mask: for each lane, whether something holds
//   B         32 bytes, one for each element of a group
//   H         kLanes halves: integers of 16 bits
//   D         kDoubles doubles
//   W         kWides integers of 64 bits
//
//   Load, Store            F from and to floats; LoadU, StoreU, LoadH, StoreH likewise, of U and H;
//                          no alignment is needed
//   Stream(from, to)       copies a line of 64 bytes to where a line begins, past the caches where
//                          the processor can; EndStreams() makes these lines visible to all threads
//   StorePast              as Store, past the caches where that can be; `out` begins a vector
//   Set, SetU              the same value in all lanes; Lanes() is 0, 1, 2, ...
//   AsU, AsF               the same bits as the other type
//   Add, Sub, Mul          of F; Add, Sub of U; Add16 of U: each lane is two numbers of 16
//                          bits, without a carry between them
//   SumOf                  of F: the upper half of the lanes added to the lower half, until one
//                          lane is left
//   Min(a, b)              of F: a < b ? a : b, so b where one is NaN
//   MinInt, MaxInt         of U as signed integers; MaxOf: the largest lane
//   And, Or, Xor           of U; And, Or, Not of M
//   ShiftLeft<n>, ShiftRight<n>, SignBits    of U; SignBits is all ones where the top bit is set
//   ShiftLeft(u, n), ShiftRight(u, n)        of U, where n, 0 to 31, is not known beforehand
//   Greater, Equal         of U as signed integers; AtMost: unsigned
//   Normal(u)              where the exponent bits are not all zero: not zero, not denormal
//   Blend(m, a, b)         a where m, else b; Keep(m, a): a where m, else +0
//   Bits(m), MaskOf(bits)  bit i stands for lane i; MaskOf ignores further bits
//   Negative               of F: below zero; zero of either sign is not
//   Butterfly<n>(f)        lanes n apart become the sum of the two, in the first of them, and the
//                          first less the second, in the second; n is a power of two below kLanes
//   Compress(m, u)         the lanes of u where m, moved together at the front; others are anything
//   Spread(m, u)           the front lanes of u moved apart to where m; others are anything
//   Lookup(table, u)       table[u % 8] of 8 floats; LookupOf16: table[u % 16] of 16
//   FromInt, ToInt         signed integers to F and back, the latter towards zero
//   Rint                   to the nearest integer, ties to even, for 0 <= f < 2^22
//   Narrow(u), Widen(h)    U to its low halves, at most 0xffff each, and back
//   ToFloat16, FromFloat16    F to the bits of float16 as H, to nearest, ties to even, and back;
//                          NaN becomes quiet; denormals of float16 are never taken for zero
//   BytesOf(u)             32 lanes as bytes, those of u[0] first; of a lane above 0xff, its byte
//                          and all later ones are anything
//   Raise(b, n)            each byte times 2^n, n < 8; bits of the byte below may enter from below
//   TopBits(b)             bit i is the top bit of byte i
//   Push(b, word)          twice each byte, plus that byte's bit of the word
//   CountFrom(c, b, n)     each byte of c, one more where that of b is at least n, unsigned
//   Widen(b, i)            bytes i * kLanes and on, as U
//   Square(x)              the squares of kDoubles floats as D, denormals as zero; StoreD
//   Doubles(x), SetD       kDoubles floats as D, where denormals are zero; the same value in all
//   AddD, MulD             of D
//   AddEach(v)             of kFan vectors, a power of two: the sums of each kFan adjacent
//                          elements, added over adjacent pairs, then pairs of pairs
//   SetW, MulWide          the low halves' product; HighHalf: the upper 32 bits; XorWide: of two
//                          or three
//   InOrder(a, b, c, d)    of W, changes nothing; where a backend needs it, the compiler
//                          computes these before those of the next call
//   Counters(n)            n to n + kWides - 1, in the order that StoreBlocks wants
//   StoreBlocks(a, b, c, d, out)    the low halves, four words for each counter, in order
//   kChains                how many independent chains of multiplications keep the processor busy
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/dispatch.h"
#include "kernels/base/words.h"

#define GRACE_INLINE static inline __attribute__((always_inline))

#include "kernels/base/vector/generic.h"
#if GRACE_X86
#include "kernels/base/vector/avx2.h"
#include "kernels/base/vector/avx512.h"
#endif
#if GRACE_NEON
#include "kernels/base/vector/neon.h"
#endif
