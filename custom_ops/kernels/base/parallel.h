// Executor: spreads the work of a kernel over threads, which may be TensorFlow's or others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace grace {

class Executor {
 public:
  using Body = std::function<void(int64_t begin, int64_t end)>;

  virtual ~Executor() = default;

  // Calls body on [0, total) in pieces [i * grain, (i + 1) * grain), in any order, perhaps at the
  // same time, and returns when all are done. What a body throws is thrown here.
  virtual void For(int64_t total, int64_t grain, const Body& body) const = 0;
};

// The calling thread alone.
class Serial : public Executor {
 public:
  void For(int64_t total, int64_t grain, const Body& body) const override {
    for (int64_t begin = 0; begin < total; begin += grain) {
      body(begin, std::min(total, begin + grain));
    }
  }
};

}  // namespace grace
