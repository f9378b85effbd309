// What the CUDA library tells of itself.
#include "kernels/base/device/launch.h"
#include "kernels/base/device/library.h"

GRACE_EXPORT int64_t grace_cuda_launches() { return grace::g_launches; }

#ifdef GRACE_EMULATE_CUDA

GRACE_EXPORT const char* grace_cuda_error(int) { return "the emulation has no errors"; }
GRACE_EXPORT const char* grace_cuda_build() { return "emulated"; }
GRACE_EXPORT int grace_cuda_versions(int*, int*) { return 0; }
GRACE_EXPORT int grace_cuda_copy(const void* from, int64_t size, void* to, void*) {
  std::memcpy(to, from, size);
  return 0;
}

#else

// setup.py and the Makefile tell the architectures.
#ifndef GRACE_CUDA_ARCHS
#define GRACE_CUDA_ARCHS "the compiler's own"
#endif
#define GRACE_TEXT_OF(x) #x
#define GRACE_TEXT(x) GRACE_TEXT_OF(x)

namespace {

// CUDA also keeps an error for the thread's next question, which is that of the next kernel.
int Told(cudaError_t error) {
  if (error) cudaGetLastError();
  return error;
}

}  // namespace

GRACE_EXPORT const char* grace_cuda_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

GRACE_EXPORT const char* grace_cuda_build() {
  return "CUDA " GRACE_TEXT(__CUDACC_VER_MAJOR__) "." GRACE_TEXT(
      __CUDACC_VER_MINOR__) " for " GRACE_CUDA_ARCHS;
}

GRACE_EXPORT int grace_cuda_versions(int* driver, int* runtime) {
  int devices = 0;
  cudaError_t error = cudaDriverGetVersion(driver);
  if (!error) error = cudaRuntimeGetVersion(runtime);
  if (!error) error = cudaGetDeviceCount(&devices);
  // An older driver loads the kernels, and then does not start those with large parameters.
  constexpr int kLeast = grace::kMostParcel > 4096 ? 12010 : 0;
  return Told(!error && *driver < kLeast ? cudaErrorInsufficientDriver : error);
}

GRACE_EXPORT int grace_cuda_copy(const void* from, int64_t size, void* to, void* stream) {
  return Told(
      cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}

#endif
