#include "kernels/host/segment.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <thread>
#endif

namespace grace {
namespace {

constexpr int kSpins = 64;               // as long as a wake of another process takes, or less
constexpr long kNanoseconds = 50000000;  // of a sleep, after which a process looks at the stop word

struct Head {
  Counter stop;
  Announced announced;
};

int64_t ControlBytes(int places) {
  return CeilDiv(sizeof(Head) + places * sizeof(Progress), kHostFirstPage) * kHostFirstPage;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Counter::Raise(uint32_t to) {
  // Sequentially consistent, as is the count of sleepers: either this sees the sleeper, or the
  // sleeper sees the new value.
  value.store(to, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst)) Wake();
}

#ifdef __linux__
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "The kernel waits for a word.");

void Counter::Wake() { syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

void Counter::Sleep(uint32_t wanted) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t now = value.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(now - wanted) < 0) {
    const timespec longest{0, kNanoseconds};
    syscall(SYS_futex, &value, FUTEX_WAIT, now, &longest, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}
#else
void Counter::Wake() {}

void Counter::Sleep(uint32_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); }
#endif

Segment::Segment(void* memory, int places) : places_(places) {
  char* begin = static_cast<char*>(memory) + kHostFirstPage;
  Head* head = reinterpret_cast<Head*>(begin);
  stop_ = &head->stop;
  announced_ = &head->announced;
  progress_ = reinterpret_cast<Progress*>(begin + sizeof(Head));
  chunks_ = begin + ControlBytes(places);
}

int64_t Segment::Bytes(int places) {
  return kHostFirstPage + ControlBytes(places) + (places + 1) * kHostDepth * kHostChunk;
}

void Segment::Await(Counter& counter, uint32_t wanted, Deadline deadline) const {
  for (int i = 0; i < kSpins; ++i) {
    if (counter.Reached(wanted)) return;
    Pause();
  }
  while (!counter.Reached(wanted)) {
    Check(deadline);
    counter.Sleep(wanted);
  }
}

void Segment::Check(Deadline deadline) const {
  if (stopped()) throw HostFailure{HostFailure::kStopped, "a worker is lost"};
  if (deadline != Deadline::max() && std::chrono::steady_clock::now() > deadline) {
    throw HostFailure{HostFailure::kLate, "another worker did not take part in time"};
  }
}

void Segment::Stop() const {
  stop_->value.store(1, std::memory_order_seq_cst);
  announced_->count.Wake();
  for (int place = 0; place < places_; ++place) {
    progress_[place].written.Wake();
    progress_[place].read.Wake();
  }
}

}  // namespace grace
