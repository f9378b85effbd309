#include "ops/glue/cuda_library.h"

#include <unistd.h>

#include <string>

#include "ops/glue/dynamic_loading.h"
#include "ops/glue/stream_layout.h"
#include "ops/glue/thread_pool.h"

namespace grace {
namespace {

using GetDevice = const GpuDeviceView* (*)(const void* context);

GetDevice Accessor() {
  static const auto accessor = reinterpret_cast<GetDevice>(FindInTensorFlow(
      "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"));
  return accessor;
}

std::string g_emulated;  // the path of an emulated library, for tests

// libgrace_cuda.so beside this library.
std::string LibraryPath() {
  Dl_info own;
  if (!dladdr(reinterpret_cast<const void*>(&HasCudaLibrary), &own)) return "";
  const std::string path = own.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "libgrace_cuda.so";
}

void* Open() {
  const std::string path = EmulatesCuda() ? g_emulated : LibraryPath();
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* reason = dlerror();
  throw Unimplemented("The library of the kernels for GPUs could not be opened: " +
                      std::string(reason ? reason : path) + ".");
}

}  // namespace

bool HasCudaLibrary() { return access(LibraryPath().c_str(), R_OK) == 0; }

void* CudaFunction(const char* name) {
  static void* const library = Open();
  if (void* function = dlsym(library, name)) return function;
  throw Unimplemented("The library of the kernels for GPUs lacks " + std::string(name) +
                      ": it is of another version of the package; install the package again.");
}

std::string CudaError(int error) {
  const auto describe = reinterpret_cast<const char* (*)(int)>(CudaFunction("grace_cuda_error"));
  return "A kernel for GPUs could not be started: " + std::string(describe(error)) + ".";
}

void* StreamOf(TF_OpKernelContext* context) {
  const GetDevice get_device = Accessor();
  if (!get_device) {
    throw Unimplemented(
        "How this version of TensorFlow keeps its CUDA stream is not known; "
        "grace_tf.ops.using(\"reference\") runs the operations in plain TensorFlow.");
  }
  return get_device(context)->stream->stream();
}

bool EmulatesCuda() { return !g_emulated.empty(); }

// For tests and reports, through ctypes.
extern "C" {
__attribute__((visibility("default"))) void grace_emulate_cuda(const char* path) {
  g_emulated = path;
}

__attribute__((visibility("default"))) int grace_knows_stream() { return Accessor() != nullptr; }
}

}  // namespace grace
