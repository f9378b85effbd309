// The functions of libgrace_cuda.so, the library of the kernels for GPUs: one for each list kernel,
// with the arguments and the results of the function that the .h of its .cu declares. Nothing in it
// names TensorFlow.
//
// All pointers but `list`, `sources`, `targets`, `key`, `keys`, the arrays of lengths and those
// named below are the device's, also those within a list. The results are the same bits as those of
// the functions of the .cc files, but for what follows from a NaN's sign and bits: a GPU's
// arithmetic has one NaN, 0x7fffffff. `finite` gets what these return. With a workspace of null a
// launcher starts nothing and sets *bytes to the size that the workspace must have; otherwise it
// starts its kernels on the stream, and returns 0 or the number of a CUDA error.
#pragma once

#include <cstdint>

extern "C" {

// What a CUDA error is called.
const char* grace_cuda_error(int error);
// The compiler's version and the architectures that the library has code for.
const char* grace_cuda_build();
// The versions of CUDA that the driver serves, 0 where there is none, and that the library was
// built with, as 1000 * major + 10 * minor. Returns 0, or the number of a CUDA error where there is
// no GPU or the driver is too old. The call uses no memory of a GPU.
int grace_cuda_versions(int* driver, int* runtime);
// How many kernels were started so far.
int64_t grace_cuda_launches();
// Copies bytes within the device's memory.
int grace_cuda_copy(const void* from, int64_t size, void* to, void* stream);

}  // extern "C"
