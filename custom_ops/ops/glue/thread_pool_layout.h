// The memory layout of TensorFlow's intra-op thread pool.
//
// The C API gives no access to them. TensorFlow exports the C++ accessor, and the two classes
// behind it have looked like this in every release that LayoutIsKnown names;
// tests/native/test_thread_pool.py compares them with the headers of an installed TensorFlow.
#pragma once

#include <cstdio>
#include <functional>

namespace Eigen {
class ThreadPoolInterface {
 public:
  virtual void Schedule(std::function<void()> work) = 0;
  virtual void ScheduleWithHint(std::function<void()> work, int start, int limit) = 0;
  virtual void Cancel() = 0;
  virtual int NumThreads() const = 0;
  virtual int CurrentThreadId() const = 0;
  virtual ~ThreadPoolInterface() {}
};
}  // namespace Eigen

namespace grace {

// Eigen::ThreadPoolDevice.
struct DeviceView {
  Eigen::ThreadPoolInterface* pool;
  int threads;
};

// Whether the layout was compared with this version of TensorFlow, such as "2.21.0-rc1".
inline bool LayoutIsKnown(const char* version) {
  int major = 0, minor = 0;
  if (!version || std::sscanf(version, "%d.%d", &major, &minor) != 2) return false;
  return major == 2 && minor >= 15 && minor <= 21;
}

}  // namespace grace
