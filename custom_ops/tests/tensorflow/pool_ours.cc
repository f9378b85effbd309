// Uses a thread pool device as the operations do, by the layout that they assume.
#include "ops/glue/thread_pool_layout.h"

int Threads(const void* device) { return static_cast<const grace::DeviceView*>(device)->threads; }

void Schedule(const void* device, std::function<void()> work) {
  static_cast<const grace::DeviceView*>(device)->pool->Schedule(std::move(work));
}
