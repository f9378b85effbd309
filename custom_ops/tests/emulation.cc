// Where this is defined, as Ubuntu's compilers do by default, glibc's longjmp ends a program that
// jumps to another stack. It must be undefined before the first header.
#undef _FORTIFY_SOURCE

#include "kernels/base/device/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace grace::emulation {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStack = 1 << 16;
constexpr int kMostThreads = 1024;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

// Where a thread of execution goes on. After the first switch to a new stack, which is ucontext's,
// setjmp and longjmp switch without calls of the system: they take a tenth of the time. The
// sanitizer of addresses does not take a jump to another stack, and so ucontext serves there.
struct Point {
  ucontext_t context;
  jmp_buf jump;
  bool jumps = false;
};

void Switch(Point* from, Point* to) {
#ifndef __SANITIZE_ADDRESS__
  if (_setjmp(from->jump)) return;
  from->jumps = true;
  if (to->jumps) _longjmp(to->jump, 1);
#endif
  swapcontext(&from->context, &to->context);
}

struct Fiber {
  Point point;
  State state;
  unsigned thread;
  int exchanges;  // so many the thread took part in
};

// What the lanes of a warp exchange. A lane is at most one exchange ahead of another, so two tables
// are enough.
struct Slots {
  uint64_t values[2][kLanes];
};

// The threads of all blocks, one after another: a fiber runs for each block that has its number.
struct Fibers {
  std::unique_ptr<char[]> stacks{new char[kMostThreads * kStack]};
  Fiber fibers[kMostThreads];
  Point scheduler;

  Fibers();
};
thread_local std::unique_ptr<Fibers> all_fibers;

class Block {
 public:
  Block(int threads, const std::function<void()>& body)
      : body_(body), threads_(threads), slots_((threads + kLanes - 1) / kLanes) {
    if (!all_fibers) all_fibers.reset(new Fibers);
    fibers_ = all_fibers->fibers;
    for (int i = 0; i < threads; ++i) order_.push_back(i);
  }

  void Run(Order order) {
    Arrange(order);
    for (int i = 0; i < threads_; ++i) {
      fibers_[i].state = State::kReady;
      fibers_[i].exchanges = 0;
    }
    for (bool done = false; !done;) {
      for (const int i : order_) {
        if (fibers_[i].state == State::kReady) Resume(i);
      }
      done = Release();
    }
  }

  void Wait(State state) {
    Fiber& own = *current_;
    own.state = state;
    Switch(&own.point, &all_fibers->scheduler);
  }

  const uint64_t* Exchange(uint64_t value) {
    Fiber& own = *current_;
    uint64_t* table = slots_[own.thread / kLanes].values[own.exchanges++ % 2];
    table[own.thread % kLanes] = value;
    Wait(State::kAtWarp);
    return table;
  }

  void Body() {
    body_();
    Wait(State::kDone);
  }

 private:
  void Arrange(Order order) {
    std::sort(order_.begin(), order_.end());
    if (order == Order::kBackward) std::reverse(order_.begin(), order_.end());
    if (order == Order::kShuffled) std::shuffle(order_.begin(), order_.end(), random_);
  }

  void Resume(int i) {
    current_ = &fibers_[i];
    threadIdx = {current_->thread, 0, 0};
    Switch(&all_fibers->scheduler, &current_->point);
  }

  // Lets go the threads whose barrier is complete. Returns whether all threads are done. A thread
  // that is done counts as arrived nowhere: a kernel that leaves threads behind at a barrier has an
  // error, and here it stops.
  bool Release() {
    bool released = false, all_done = true, all_at_block = true;
    for (size_t w = 0; w < slots_.size(); ++w) {
      const size_t begin = w * kLanes, end = std::min<size_t>(begin + kLanes, threads_);
      bool all_at_warp = true;
      for (size_t i = begin; i < end; ++i) {
        all_at_warp &= fibers_[i].state == State::kAtWarp;
        all_at_block &= fibers_[i].state == State::kAtBlock;
        all_done &= fibers_[i].state == State::kDone;
      }
      if (all_at_warp) released = Free(begin, end);
    }
    if (all_at_block) released = Free(0, threads_);
    if (!released && !all_done) {
      std::fprintf(stderr, "The threads of a block wait for different things, for ever.\n");
      std::abort();
    }
    return all_done;
  }

  bool Free(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) fibers_[i].state = State::kReady;
    return true;
  }

  const std::function<void()>& body_;
  const int threads_;
  Fiber* fibers_;
  std::vector<Slots> slots_;
  std::vector<int> order_;
  std::mt19937 random_;
  Fiber* current_ = nullptr;
};

thread_local Block* block = nullptr;
Order chosen_order = Order::kForward;

[[noreturn]] void RunBlocks() {
  for (;;) block->Body();
}

Fibers::Fibers() {
  for (int i = 0; i < kMostThreads; ++i) {
    fibers[i].thread = static_cast<unsigned>(i);
    ucontext_t& context = fibers[i].point.context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.get() + i * kStack;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, RunBlocks, 0);
  }
}

}  // namespace

void SetOrder(Order order) { chosen_order = order; }

void Run(int64_t blocks, int threads, const std::function<void()>& body) {
  Block own(threads, body);
  block = &own;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = {static_cast<unsigned>(blocks), 1, 1};
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t at = chosen_order == Order::kBackward ? blocks - 1 - b : b;
    blockIdx = {static_cast<unsigned>(at), 0, 0};
    own.Run(chosen_order);
  }
  block = nullptr;
}

void BlockBarrier() { block->Wait(State::kAtBlock); }
void WarpBarrier() { block->Wait(State::kAtWarp); }
const uint64_t* Exchange(uint64_t value) { return block->Exchange(value); }

}  // namespace grace::emulation
