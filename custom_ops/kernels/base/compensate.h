// The part that every list encoder begins with: acc = x * multiplier + residual, piece by piece.
//
// A thread computes acc for a chunk of its stretch at a time, in a buffer that stays in its nearest
// cache, encodes it there, and writes it to `residual_out` once, with what was sent taken out.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

// Where a tensor may be cut: whole cache lines can bypass the caches.
constexpr CutAt kLines{16};

// Writes acc of source[begin, begin + count) and returns whether all of it is finite. A multiplier
// of 1 means no product, so that without a residual the bits stay as they are. Like TensorFlow's
// own sums and products, it counts denormals, given or arising, as zeros of their sign; the caller
// holds a DenormalsAreZero.
using Compensate = bool (*)(const float* x, const float* residual, float multiplier, int64_t count,
                            float* acc);
Compensate ChooseCompensate();

// Whether a list of so many elements should bypass the caches when it is written.
bool TooLargeToCache(int64_t elements);

// Copies bytes; with `bypass` and where `to` begins a cache line, past the caches, which saves
// reading the lines of `to` first.
void Store(const void* from, int64_t bytes, bool bypass, void* to);
// Makes what Store wrote past the caches visible to other threads.
void EndStores(bool bypass);

// Runs over source[first, last): for each chunk compute(begin, count, acc) writes acc and returns
// whether it is finite, then visit(begin, count, acc, writable). `writable` is acc where the source
// has a `residual_out`, which gets what visit leaves there, and else null. Where acc is `plain`, it
// is x itself, and compute gets null. Returns whether all of acc is finite.
template <class Compute, class Visit>
bool EncodeChunks(const EncodeInput& source, bool plain, const Compute& compute, int64_t first,
                  int64_t last, bool bypass, const Visit& visit) {
  alignas(64) float buffer[kChunk];
  bypass &= source.residual_out != source.x;  // lines of x are in the caches already
  bool finite = true;
  for (int64_t begin = first; begin < last; begin += kChunk) {
    const int64_t count = std::min(kChunk, last - begin);
    finite &= compute(begin, count, plain ? nullptr : buffer);
    visit(begin, count, plain ? source.x + begin : buffer, source.residual_out ? buffer : nullptr);
    if (source.residual_out) Store(buffer, 4 * count, bypass, source.residual_out + begin);
  }
  EndStores(bypass && source.residual_out);
  return finite;
}

// EncodeChunks of acc as Compensate has it.
template <class Visit>
bool EncodePiece(const EncodeInput& source, float multiplier, Compensate compensate, int64_t first,
                 int64_t last, bool bypass, const Visit& visit) {
  const auto compute = [&](int64_t begin, int64_t count, float* acc) {
    const float* residual = source.residual ? source.residual + begin : nullptr;
    return compensate(source.x + begin, residual, multiplier, count, acc);
  };
  const bool plain = !source.residual && multiplier == 1.0f;
  return EncodeChunks(source, plain, compute, first, last, bypass, visit);
}

}  // namespace grace
