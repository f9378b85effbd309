// The library of the CUDA kernels, opened at the first kernel that runs on a GPU.
#pragma once

#include <stdexcept>
#include <string>

#include "kernels/base/device/library.h"
#include "ops/glue/tf_c_api.h"

namespace grace {

// Becomes tf.errors.UnimplementedError.
struct Unimplemented : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Whether the file is there, so that kernels for GPUs are worth registering; it is not opened.
bool HasCudaLibrary();

// A function of the library; throws Unimplemented where there is none.
void* CudaFunction(const char* name);

// A function that returns the launcher grace_cuda_NAME, with its type; only then the library is
// opened.
#define GRACE_CUDA(name)                                                                   \
  [] {                                                                                     \
    static const auto launcher =                                                           \
        reinterpret_cast<decltype(&grace_cuda_##name)>(CudaFunction("grace_cuda_" #name)); \
    return launcher;                                                                       \
  }

// What CUDA calls an error, in one sentence.
std::string CudaError(int error);

// The CUDA stream of the device that runs this kernel; throws Unimplemented where TensorFlow does
// not provide it or has a version that was not checked.
void* StreamOf(TF_OpKernelContext* context);

// For tests: whether kernels for the CPU call the CUDA library, an emulated one, on the CPU's
// memory.
bool EmulatesCuda();

}  // namespace grace
