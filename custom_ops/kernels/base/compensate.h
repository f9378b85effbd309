// What every list encoder begins with, acc = x * multiplier + residual, piece by piece; and what
// every list decoder ends with.
//
// A thread computes acc for a chunk of its stretch at a time, in a buffer that stays in its nearest
// cache, encodes it there, and writes it to `residual_out` once, with what was sent taken out.
// Likewise it decodes a chunk of all workers in a buffer, and writes the totals once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/list.h"
#include "kernels/base/parallel.h"

namespace grace {

// Where a tensor may be cut: whole cache lines can bypass the caches.
constexpr CutAt kLines{16};

// Writes acc of source[begin, begin + count) and returns whether all of it is finite. A multiplier
// of 1 means no product, so that without a residual the bits stay as they are. As in TensorFlow,
// denormal inputs and results count as zeros of their sign; the caller holds a DenormalsAreZero.
using Compensate = bool (*)(const float* x, const float* residual, float multiplier, int64_t count,
                            float* acc);
Compensate ChooseCompensate();

// A tensor to be accumulated, for encoders that take their elements themselves.
struct Accumulated {
  const float* x;
  const float* residual;
  float multiplier;

  // Elements [begin, begin + n) of acc, n <= kChunk: computed into `room`, or x's own if nothing is
  // to do.
  const float* At(int64_t begin, int64_t n, float* room) const;
};

// Whether a list of this many elements should bypass the caches when it is written.
bool TooLargeToCache(int64_t elements);

// Copies bytes; with `bypass` and where `to` begins a cache line, past the caches, which saves
// reading the lines of `to` first.
void Store(const void* from, int64_t bytes, bool bypass, void* to);
// Makes what Store wrote past the caches visible to other threads.
void EndStores(bool bypass);

// Runs over source[first, last): for each chunk compute(begin, count, acc) writes acc and returns
// whether it is finite, then visit(begin, count, acc, writable) follows. Where acc is `plain`, it
// is x itself, and compute gets null. acc has whole groups: zeros follow the last element.
// `writable` is acc where the source has a `residual_out`, which gets what visit leaves there, and
// else null; it has room for a chunk. Returns whether all of acc is finite.
template <class Compute, class Visit>
bool EncodePieceBy(const EncodeInput& source, bool plain, const Compute& compute, int64_t first,
                   int64_t last, bool bypass, const Visit& visit) {
  alignas(64) float buffer[kChunk];
  bypass &= source.residual_out != source.x;  // lines of x are in the caches already
  bool finite = true;
  for (int64_t begin = first; begin < last; begin += kChunk) {
    const int64_t count = std::min(kChunk, last - begin), rest = count % kGroup;
    const float* x = source.x + begin;
    finite &= compute(begin, count, plain ? nullptr : buffer);
    if (rest && plain) std::copy(x, x + count, buffer);
    if (rest) std::fill_n(buffer + count, kGroup - rest, 0.0f);
    visit(begin, count, plain && !rest ? x : buffer, source.residual_out ? buffer : nullptr);
    if (source.residual_out) Store(buffer, 4 * count, bypass, source.residual_out + begin);
  }
  EndStores(bypass && source.residual_out);
  return finite;
}

// EncodePieceBy of acc = x * multiplier + residual.
template <class Visit>
bool EncodePiece(const EncodeInput& source, float multiplier, Compensate compensate, int64_t first,
                 int64_t last, bool bypass, const Visit& visit) {
  const auto compute = [&](int64_t begin, int64_t count, float* acc) {
    const float* residual = source.residual ? source.residual + begin : nullptr;
    return compensate(source.x + begin, residual, multiplier, count, acc);
  };
  const bool plain = !source.residual && multiplier == 1.0f;
  return EncodePieceBy(source, plain, compute, first, last, bypass, visit);
}

// EncodePiece of all sources, which are cut at `cut`: visit(tensor, begin, count, acc, writable,
// bypass), where denormals are zero. `bypass` is for what visit stores. Returns whether every acc
// is finite.
template <class Visit>
bool EncodeChunks(const Executor& executor, const std::vector<EncodeInput>& sources,
                  float multiplier, CutAt cut, const Visit& visit) {
  const ListLoop loop = LoopOver(sources);
  const Compensate compensate = ChooseCompensate();
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, cut, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    const bool finite =
        EncodePiece(sources[t], multiplier, compensate, first, last, bypass,
                    [&](int64_t begin, int64_t count, const float* acc, float* writable) {
                      visit(t, begin, count, acc, writable, bypass);
                    });
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

// Writes all targets, which are cut at `cut`: fill(tensor, begin, count, out) writes the totals of
// a chunk to a buffer, where denormals are zero, and returns whether they are finite; it may write
// whole groups. Returns whether every total is finite.
template <class Target, class Fill>
bool DecodeChunks(const Executor& executor, const std::vector<Target>& targets, CutAt cut,
                  const Fill& fill) {
  const ListLoop loop = LoopOver(targets);
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, cut, [&](size_t t, int64_t first, int64_t last) {
    const DenormalsAreZero scope;
    alignas(64) float out[kChunk];
    bool finite = true;
    for (int64_t begin = first; begin < last; begin += kChunk) {
      const int64_t count = std::min(kChunk, last - begin);
      finite &= fill(t, begin, count, out);
      Store(out, 4 * count, bypass, targets[t].total + begin);
    }
    EndStores(bypass);
    if (!finite) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

}  // namespace grace
