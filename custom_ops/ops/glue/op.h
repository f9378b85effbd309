// Connects operations with TensorFlow's C API: attributes, inputs, outputs, memory, registration.
//
// An operation is a struct with a constructor from Attributes and `Compute(const Call&) const`,
// which throws Invalid when its inputs do not fit. Register<Op>(definition) makes it known.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "ops/glue/cuda_library.h"
#include "ops/glue/tf_c_api.h"
#include "ops/glue/thread_pool.h"

namespace grace {

// Becomes tf.errors.InvalidArgumentError.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void Require(bool fits, const char* otherwise) {
  if (!fits) throw Invalid(otherwise);
}

// The attributes of a node; a missing one throws Invalid.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}
  int64_t Int(const char* name) const;
  float Float(const char* name) const;
  bool Bool(const char* name) const;
  std::vector<int64_t> Ints(const char* name) const;
  // As Ints, none of them negative.
  std::vector<int64_t> Lengths(const char* name) const;

 private:
  TF_OpKernelConstruction* construction_;
};

// A tensor of a call; owns one reference.
class Tensor {
 public:
  explicit Tensor(TF_Tensor* tensor) : tensor_(tensor) {}
  Tensor(Tensor&& other) noexcept : tensor_(other.tensor_) { other.tensor_ = nullptr; }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (tensor_) TF_DeleteTensor(tensor_);
  }

  int rank() const { return TF_NumDims(tensor_); }
  int64_t size(int axis = 0) const { return TF_Dim(tensor_, axis); }
  // Of all axes.
  int64_t elements() const { return TF_TensorElementCount(tensor_); }
  template <class T>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor_));
  }

 private:
  TF_Tensor* tensor_;
};

enum class Place { kCpu, kGpu };

// One execution of an operation.
class Call {
 public:
  Call(TF_OpKernelContext* context, Place place)
      : context_(context), threads_(context), on_gpu_(place == Place::kGpu || EmulatesCuda()) {
    if (place == Place::kGpu) stream_ = StreamOf(context);
  }
  // Whether the tensors are in a GPU's memory, but for inputs that OnGpu names; then Run is the way
  // to work on them.
  bool on_gpu() const { return on_gpu_; }
  const Executor& executor() const { return threads_; }
  int inputs() const { return TF_NumInputs(context_); }
  int outputs() const { return TF_NumOutputs(context_); }

  // The i-th input, which must have this rank, or may have any.
  Tensor Input(int i, int rank) const;
  Tensor Input(int i) const;
  // The low 32 bits of the i-th input, an int64 scalar.
  uint32_t Word(int i) const;
  // The i-th output as a new vector of 4-byte elements.
  Tensor Vector(int i, TF_DataType type, int64_t size) const;
  // The i-th output as a new tensor of 4-byte elements of this shape.
  Tensor Shaped(int i, TF_DataType type, const std::vector<int64_t>& shape) const;
  // The i-th output, of an input's shape and type. It takes the memory of that input where nothing
  // else holds the input (a Tensor of it in this call would); else it gets new memory.
  Tensor Forward(int i, int input) const;
  // The i-th output as a bool scalar.
  void SetBool(int i, bool value) const;
  // The place of the i-th output, a bool scalar.
  bool* NewBool(int i) const { return Output(i, TF_BOOL, nullptr, 0, 1).data<bool>(); }

  // Memory of the device, while the Tensor lives; kernels that were started before may still use
  // it, because the device's next kernels wait for them.
  Tensor Workspace(size_t bytes) const;
  // Copies floats in the device's memory.
  void Copy(const float* from, int64_t count, float* to) const;

  // Calls a launcher of the CUDA library with these arguments and the workspace that it asks for.
  template <class... Parameters, class... Arguments>
  void Run(int (*launcher)(Parameters...), Arguments... arguments) const {
    size_t bytes = 0;
    CheckCuda(launcher(arguments..., nullptr, &bytes, stream_));
    const Tensor workspace = Workspace(bytes);
    CheckCuda(launcher(arguments..., workspace.data<void>(), &bytes, stream_));
  }

 private:
  static void CheckCuda(int error) {
    if (error) throw std::runtime_error(CudaError(error));
  }
  Tensor Output(int i, TF_DataType type, const int64_t* shape, int rank, size_t bytes) const;

  TF_OpKernelContext* context_;
  ThreadPool threads_;
  bool on_gpu_;
  void* stream_ = nullptr;
};

// Inputs [first, first + count) of a call: float tensors of any shape, as a kernel's list.
class FloatList {
 public:
  FloatList(const Call& call, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      tensors_.push_back(call.Input(i));
      views_.push_back({tensors_.back().data<float>(), tensors_.back().elements()});
    }
  }
  const std::vector<Floats>& views() const { return views_; }
  // The tensors as an encoder reads them, which have no residuals.
  std::vector<EncodeInput> sources() const {
    std::vector<EncodeInput> sources;
    for (const Floats& x : views_) sources.push_back({x.data, nullptr, nullptr, x.size});
    return sources;
  }

 private:
  std::vector<Tensor> tensors_;
  std::vector<Floats> views_;
};

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// Every output is a vector, whose length follows from attributes, which shape functions of the C
// API cannot read: after `extra` inputs, `outputs` for every `inputs` of them.
template <int inputs, int outputs, int extra = 0>
void Vectors(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t items = (TF_ShapeInferenceContextNumInputs(context) - extra) / inputs;
  for (int i = 0; i < items * outputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeHandle* vector = TF_ShapeInferenceContextVectorFromSize(context, size_t(-1));
    TF_ShapeInferenceContextSetOutput(context, i, vector, status);
    TF_DeleteShapeHandle(vector);
  }
}

void OneVector(TF_ShapeInferenceContext* context, TF_Status* status);
// Shapes that follow from attributes, which shape functions of the C API cannot read; Python sets
// them.
void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status);
void OneScalar(TF_ShapeInferenceContext* context, TF_Status* status);

struct Definition {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  std::initializer_list<const char*> attributes;
  ShapeFunction shapes;
};

// The functions that TensorFlow calls for an operation.
struct KernelFunctions {
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
  void (*destroy)(void*);
};

void RegisterOp(const Definition& definition, const KernelFunctions& cpu);
// Nothing where there is no CUDA library.
void RegisterGpuKernel(const char* name, std::initializer_list<const char*> host_inputs,
                       const KernelFunctions& gpu);
void FailConstruction(TF_OpKernelConstruction* construction);
void FailCall(TF_OpKernelContext* context);

template <class Op, class OpAttributes, class OpCall, Place kPlace>
KernelFunctions FunctionsOf() {
  return {[](TF_OpKernelConstruction* construction) -> void* {
            try {
              return new Op(OpAttributes(construction));
            } catch (...) {
              FailConstruction(construction);
              return nullptr;
            }
          },
          [](void* op, TF_OpKernelContext* context) {
            try {
              OpCall call(context, kPlace);
              static_cast<const Op*>(op)->Compute(call);
            } catch (...) {
              FailCall(context);
            }
          },
          [](void* op) { delete static_cast<Op*>(op); }};
}

// Defines the operation and its CPU kernel; for a static initialiser, so that loading is enough.
template <class Op, class OpAttributes = Attributes, class OpCall = Call>
bool Register(const Definition& definition) {
  RegisterOp(definition, FunctionsOf<Op, OpAttributes, OpCall, Place::kCpu>());
  return true;
}

// Adds the kernel for GPUs to an operation whose Compute checks Call::on_gpu(). The inputs of these
// names stay in the host's memory.
template <class Op, class OpAttributes = Attributes, class OpCall = Call>
bool OnGpu(const char* name, std::initializer_list<const char*> host_inputs) {
  RegisterGpuKernel(name, host_inputs, FunctionsOf<Op, OpAttributes, OpCall, Place::kGpu>());
  return true;
}

}  // namespace grace
