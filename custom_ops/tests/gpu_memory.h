// Memory that the processor and a GPU both reach at the same address, so that a test of kernels
// runs on either.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>

namespace grace {

template <class T>
struct Managed {
  using value_type = T;
  T* allocate(size_t count) {
    void* memory = nullptr;
    const cudaError_t error = cudaMallocManaged(&memory, count * sizeof(T));
    if (error) throw std::runtime_error(cudaGetErrorString(error));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { cudaFree(memory); }
  bool operator==(const Managed&) const { return true; }
  bool operator!=(const Managed&) const { return false; }
};

}  // namespace grace
