// A thread pool device made from the headers of an installed TensorFlow, used through pool_ours.cc.
// tests/native/test_thread_pool.py compiles and runs the two.
#define EIGEN_USE_THREADS
#include <cstdio>
#include <functional>

#include "unsupported/Eigen/CXX11/Tensor"

int Threads(const void* device);
void Schedule(const void* device, std::function<void()> work);

namespace {

// Says which of its functions was called.
class Recorder : public Eigen::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> work) override {
    called = "Schedule";
    work();
  }
  void ScheduleWithHint(std::function<void()>, int, int) override { called = "ScheduleWithHint"; }
  void Cancel() override { called = "Cancel"; }
  int NumThreads() const override { return 7; }
  int CurrentThreadId() const override { return 0; }

  const char* called = "none";
};

}  // namespace

int main() {
  Recorder pool;
  const Eigen::ThreadPoolDevice device(&pool, 5);
  bool worked = false;
  Schedule(&device, [&] { worked = true; });
  std::printf("threads=%d called=%s worked=%d\n", Threads(&device), pool.called, worked);
}
