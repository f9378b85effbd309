// What the device of a GPU kernel looks like in memory: how TensorFlow's CUDA stream is reached.
//
// The C API gives it to pluggable devices alone. TensorFlow exports the C++ accessor of Eigen's
// device, and these classes have looked like this in every release that LayoutIsKnown names, see
// thread_pool_layout.h; tests/native/test_stream_layout.py compares them with an installed
// TensorFlow's headers.
#pragma once

namespace grace {

// Eigen::StreamInterface, as far as it is used: two entries for the destructor, then stream().
class StreamView {
 public:
  virtual ~StreamView() {}
  virtual void* const& stream() const = 0;
};

// Eigen::GpuDevice.
struct GpuDeviceView {
  const StreamView* stream;
};

}  // namespace grace
