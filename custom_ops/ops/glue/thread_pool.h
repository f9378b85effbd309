// TensorFlow's own threads as an Executor.
#pragma once

#include "kernels/base/parallel.h"
#include "ops/glue/tf_c_api.h"

namespace grace {

// The intra-op threads of the device that runs this kernel; the calling thread works with them, or
// alone if TensorFlow does not provide them or has a version that was not checked.
class ThreadPool : public Executor {
 public:
  explicit ThreadPool(TF_OpKernelContext* context) : context_(context) {}
  void For(int64_t total, int64_t grain, const Body& body) const override;

 private:
  TF_OpKernelContext* context_;
};

// A function that TensorFlow's library exports, by its mangled name; null where it exports none,
// and where TensorFlow is of a version whose classes may look different.
void* FindInTensorFlow(const char* symbol);

// How many threads work on one kernel, for tests; 0 is as many as the device has.
void SetThreads(int threads);

}  // namespace grace
