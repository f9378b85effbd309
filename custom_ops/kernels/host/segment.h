// Memory that the processes of one host share, and how they wait for each other in it.
//
// Its first page is for what the processes prove to each other before they use the rest. Then come
// a word that stops all of them, what place 0 announces, a pair of counters for each process, and
// room for kDepth chunks of each process and of results. A new segment is all zeros.
//
// What a process has written before it raises a counter is seen by those that have waited for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/words.h"

namespace grace {

// Bytes of a chunk: few enough for the chunks of all processes to stay in the caches, enough to be
// worth waking another process. And the chunks of one process that may be under way.
constexpr int64_t kHostChunk = 1 << 19;
constexpr int kHostDepth = 3;
constexpr int64_t kHostFirstPage = 4096;
constexpr int kMostPlaces = 60;  // the proofs of all fit into the first page

// Why a process of a host cannot go on.
struct HostFailure {
  enum Kind { kStopped, kLate, kOther } kind;
  std::string text;
};

// A counter that only grows, from 2^32 - 1 on to 0, and that others wait for.
struct alignas(kLine) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  bool Reached(uint32_t wanted) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - wanted) >= 0;
  }
  // Only one thread raises a counter.
  void Raise(uint32_t to);
  // Wakes those that wait, whatever the counter is.
  void Wake();
  // Sleeps until the counter changes or is woken, but not long; perhaps not at all.
  void Sleep(uint32_t wanted);
};

// What place 0 announces: the collective that all processes run next.
struct alignas(kLine) Announced {
  Counter count;
  int64_t key, bytes;
};

struct Progress {
  Counter written, read;  // the chunks of one process, over all collectives
};

using Deadline = std::chrono::steady_clock::time_point;

class Segment {
 public:
  Segment(void* memory, int places);

  static int64_t Bytes(int places);

  int places() const { return places_; }
  Announced& announced() const { return *announced_; }
  Progress& progress(int place) const { return progress_[place]; }
  // Where a chunk of a process lies; `places()` stands for the results.
  char* Chunk(int place, int64_t number) const {
    return chunks_ + (place * kHostDepth + number % kHostDepth) * kHostChunk;
  }

  // Waits for a counter; throws HostFailure where the segment is stopped or the deadline is over.
  void Await(Counter& counter, uint32_t wanted, Deadline deadline) const;
  bool stopped() const { return stop_->value.load(std::memory_order_acquire) != 0; }
  // Ends the waits of all processes. Waits that begin later end at once.
  void Stop() const;
  // Throws HostFailure where the segment is stopped or the deadline is over.
  void Check(Deadline deadline) const;

 private:
  int places_;
  Counter* stop_;
  Announced* announced_;
  Progress* progress_;
  char* chunks_;
};

}  // namespace grace
