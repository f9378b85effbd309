// Finds a GPU device's stream as the operations do, by the layout that they assume.
#include "ops/glue/stream_layout.h"

void* Stream(const void* device) {
  return static_cast<const grace::GpuDeviceView*>(device)->stream->stream();
}
