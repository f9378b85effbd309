#include "ops/glue/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "ops/glue/dynamic_loading.h"
#include "ops/glue/thread_pool_layout.h"

namespace grace {
namespace {

using GetDevice = const DeviceView* (*)(const void* context);

void* Find(const char* library, const char* symbol) {
  void* loaded = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  return loaded ? dlsym(loaded, symbol) : nullptr;
}

GetDevice Accessor() {
  static const auto accessor = reinterpret_cast<GetDevice>(FindInTensorFlow(
      "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen16ThreadPoolDeviceEEERKT_v"));
  return accessor;
}

std::atomic<int> g_threads{0};

// One parallel loop. It has shared owners, because the pool may start a thread on it after the loop
// is over. Such a thread finds no piece left and touches nothing else.
struct Loop {
  Loop(int64_t total, int64_t grain, const Executor::Body& body)
      : total(total), grain(grain), pieces((total + grain - 1) / grain), body(&body) {}

  const int64_t total, grain, pieces;
  const Executor::Body* body;  // lives as long as pieces are left
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable all_done;
  std::exception_ptr error;

  void Work() {
    for (;;) {
      const int64_t piece = next.fetch_add(1);
      if (piece >= pieces) return;
      try {
        (*body)(piece* grain, std::min(total, (piece + 1) * grain));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        error = std::current_exception();
      }
      if (done.fetch_add(1) + 1 == pieces) {
        std::lock_guard<std::mutex> lock(mutex);
        all_done.notify_all();
      }
    }
  }

  // Waits for the pieces, not for the pool's threads: a busy pool may never start them.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done.load() == pieces; });
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace

void* FindInTensorFlow(const char* symbol) {
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(Find("libtensorflow_cc.so.2", "TF_Version"));
  if (!version || !LayoutIsKnown(version())) return nullptr;
  return Find("libtensorflow_framework.so.2", symbol);
}

void SetThreads(int threads) { g_threads = threads; }

// For tests and reports, through ctypes.
extern "C" {
__attribute__((visibility("default"))) int grace_shares_threads() { return Accessor() != nullptr; }

__attribute__((visibility("default"))) int grace_layout_is_known(const char* version) {
  return LayoutIsKnown(version);
}
}

void ThreadPool::For(int64_t total, int64_t grain, const Body& body) const {
  const GetDevice get_device = Accessor();
  const int64_t pieces = total / grain + (total % grain != 0);
  const DeviceView* device = pieces > 1 && get_device ? get_device(context_) : nullptr;
  const int wanted = g_threads ? g_threads.load() : device ? device->threads : 1;
  const int64_t threads = device ? std::min<int64_t>(pieces, wanted) : 1;
  if (threads <= 1) return Serial().For(total, grain, body);
  const auto loop = std::make_shared<Loop>(total, grain, body);
  for (int64_t i = 1; i < threads; ++i) device->pool->Schedule([loop] { loop->Work(); });
  loop->Work();
  loop->Wait();
}

}  // namespace grace
