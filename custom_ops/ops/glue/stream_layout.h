// The memory layout of a GPU kernel's device, from which TensorFlow's CUDA stream is read.
//
// The C API gives the stream to pluggable devices only. TensorFlow exports the C++ accessor of
// Eigen's device, and these classes have looked like this in every release that LayoutIsKnown
// names, see thread_pool_layout.h; tests/native/test_stream_layout.py compares them with an
// installed TensorFlow's headers.
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
