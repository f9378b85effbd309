// Python makes and shares the memory of a host's processes, and calls these functions by ctypes.
#include "ops/glue/host_queues.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/glue/attributes.h"
#include "ops/glue/op.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#define GRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace grace {
namespace {

std::mutex& Lock() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// Never destroyed: their threads run until the process ends.
std::vector<HostQueue*>& Queues() {
  static auto* const queues = new std::vector<HostQueue*>;
  return *queues;
}

}  // namespace

HostQueue& QueueOf(int64_t number) {
  const std::lock_guard<std::mutex> lock(Lock());
  Require(number >= 0 && number < static_cast<int64_t>(Queues().size()),
          "This process has no shared memory of this number: it cannot be saved with a function.");
  return *Queues()[number];
}

}  // namespace grace

// Bytes of the memory of so many processes; 0 where they cannot meet in one.
GRACE_EXPORT int64_t grace_host_bytes(int places) {
#ifdef __linux__
  const bool fits = places >= 2 && places <= grace::kMostPlaces;
  return fits && grace::KnowsDone() ? grace::Segment::Bytes(places) : 0;
#else
  return 0 * places;
#endif
}

// The number of a new queue in the memory behind this file, which is all zeros but for its first
// page; -errno where it cannot be mapped.
GRACE_EXPORT int64_t grace_host_map(int file, int place, int places) {
#ifdef __linux__
  const size_t bytes = grace::Segment::Bytes(places);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return -errno;
  madvise(memory, bytes, MADV_DONTFORK);  // a child that lives on must not keep the memory
  const std::lock_guard<std::mutex> lock(grace::Lock());
  auto& queues = grace::Queues();
  queues.push_back(new grace::HostQueue(grace::Segment(memory, places), place));
  return static_cast<int64_t>(queues.size()) - 1;
#else
  return -ENOSYS - 0 * (file + place + places);
#endif
}

// Runs the queue's collectives, until `grace_host_stop`; for a thread of its own.
GRACE_EXPORT void grace_host_serve(int64_t number) { grace::QueueOf(number).Serve(); }

// Ends the collectives of all processes that share the memory.
GRACE_EXPORT void grace_host_stop(int64_t number) { grace::QueueOf(number).Stop(); }
