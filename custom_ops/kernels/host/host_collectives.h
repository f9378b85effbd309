// Collectives between the processes of one host, through the memory that they share.
//
// Data passes in chunks. Each process owns one piece of every chunk. For a sum it writes the other
// pieces into its own room, and adds up its piece, from its own tensors and the others' rooms, in
// the order of places; from the room of results it takes the pieces of the others. So for n bytes
// and L processes each moves about 4 n, and most of that meets the caches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/host/number_type.h"
#include "kernels/host/segment.h"

namespace grace {

// A tensor and the place for its sum. Both may be the same memory.
struct Summand {
  const void* own;
  void* sum;
  int64_t n;
};

// What a process has of a tensor [rows, n]: of each row the piece of its place; and the tensor.
struct Joined {
  const void* own;  // [rows, length of the piece]
  void* whole;
  int64_t rows, bytes;          // of a number
  std::vector<int64_t> begins;  // of the pieces of all places, and n
};

// This process's side of the collectives, which all processes call in the same order.
class HostCollectives {
 public:
  // `chunks` have passed before.
  HostCollectives(Segment segment, int place, int64_t chunks = 0)
      : segment_(segment), place_(place), chunks_(chunks) {}

  const Segment& segment() const { return segment_; }
  int place() const { return place_; }

  // Both throw HostFailure; the sums are then incomplete.
  void Sum(const std::vector<Summand>& list, NumberType type, Deadline deadline);
  void Join(const Joined& joined, Deadline deadline);

 private:
  void AwaitAll(Counter Progress::* counter, int64_t wanted, Deadline deadline) const;
  void Raise(Counter Progress::* counter, int64_t to) const;

  Segment segment_;
  int place_;
  int64_t chunks_;  // of all collectives before
};

}  // namespace grace
