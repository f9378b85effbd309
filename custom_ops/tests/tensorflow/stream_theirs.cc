// A GPU device made from the headers of an installed TensorFlow and of CUDA, whose stream
// stream_ours.cc finds. tests/native/test_stream_layout.py compiles and runs the two; no GPU is
// needed.
#define EIGEN_USE_GPU
#include <cuda_runtime.h>

#include <cstdio>

#include "unsupported/Eigen/CXX11/Tensor"

void* Stream(const void* device);

namespace {

// Knows its stream, and has nothing else.
class Known : public Eigen::StreamInterface {
 public:
  explicit Known(cudaStream_t stream) : stream_(stream) {}
  const cudaStream_t& stream() const override { return stream_; }
  const cudaDeviceProp& deviceProperties() const override { return properties_; }
  void* allocate(size_t) const override { return nullptr; }
  void deallocate(void*) const override {}
  void* scratchpad() const override { return nullptr; }
  unsigned int* semaphore() const override { return nullptr; }

 private:
  cudaStream_t stream_;
  cudaDeviceProp properties_;
};

}  // namespace

int main() {
  int somewhere = 0;
  const Known stream(reinterpret_cast<cudaStream_t>(&somewhere));
  const Eigen::GpuDevice device(&stream);
  std::printf("found=%d\n", Stream(&device) == &somewhere);
}
