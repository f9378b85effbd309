// One execution of an operation: its inputs, its outputs, and the way to a kernel.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "kernels/base/list.h"
#include "kernels/base/parallel.h"
#include "ops/glue/attributes.h"
#include "ops/glue/cuda_library.h"
#include "ops/glue/launch_arguments.h"
#include "ops/glue/tf_c_api.h"
#include "ops/glue/thread_pool.h"

namespace grace {

// One reference to a tensor. TensorFlow holds references of its own to the inputs and outputs of
// a call, so a pointer to their elements stays valid until the call ends. This object may be
// destroyed before.
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
  Shape shape() const;
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

class Call {
 public:
  Call(TF_OpKernelContext* context, Place place)
      : context_(context), threads_(context), on_gpu_(place == Place::kGpu || EmulatesCuda()) {
    if (place == Place::kGpu) stream_ = StreamOf(context);
  }
  // Whether the tensors are in a GPU's memory. Inputs that op.h keeps in the host's memory never
  // are.
  bool on_gpu() const { return on_gpu_; }
  const Executor& executor() const { return threads_; }
  // An asynchronous operation keeps this context, which stays valid until the operation has ended.
  // A Call object does not live that long.
  TF_OpKernelContext* context() const { return context_; }
  int inputs() const { return TF_NumInputs(context_); }
  int outputs() const { return TF_NumOutputs(context_); }

  // The i-th input, of any rank or of this one.
  Tensor Input(int i) const;
  Tensor Input(int i, int rank) const;
  // The elements of the i-th input, which must have this shape.
  template <class T>
  T* Given(int i, std::initializer_list<int64_t> shape) const {
    const Tensor input = Input(i, static_cast<int>(shape.size()));
    RequireShape(i, input, shape);
    return input.data<T>();
  }
  // The elements of the i-th input, which must have this number of them, in any shape.
  float* Floats(int i, int64_t elements) const;
  // The low word of the integer that the i-th input, an int64 scalar, is.
  uint32_t Word(int i) const { return static_cast<uint32_t>(*Given<int64_t>(i, {})); }
  // The float that the i-th input, a scalar, is.
  float Scalar(int i) const { return *Given<float>(i, {}); }
  // How many rows the first input, a matrix with a row for each worker, has.
  int64_t Workers(int64_t at_least = 1) const;

  // The elements of the i-th output, a new tensor of this shape.
  template <class T>
  T* New(int i, std::initializer_list<int64_t> shape) const {
    return Output(i, shape.begin(), static_cast<int>(shape.size()), sizeof(T)).data<T>();
  }
  template <class T>
  T* New(int i, const Shape& shape) const {
    return Output(i, shape.data(), static_cast<int>(shape.size()), sizeof(T)).data<T>();
  }
  // The elements of the i-th output, of an input's shape and type. It takes the memory of that
  // input where nothing else holds the input; a Tensor of it in this call would. Elsewhere it gets
  // new memory.
  float* Forward(int i, int input) const;
  // Gives the i-th output the memory of this input, also where something else holds it.
  void Share(int i, int input) const;
  // The i-th output with what input i holds, in place where nothing else holds it.
  DecodeOutput Updated(int i) const;

  // Memory of the device, while the Tensor lives; kernels that were started before may still use
  // it, because the device's next kernels wait for them.
  Tensor Workspace(size_t bytes) const;

  // Calls kernel(executor(), arguments...) on the CPU, and on a GPU the launcher of the same kernel
  // with what ForLauncher makes of the arguments. What a kernel returns comes after them in a
  // launcher's arguments:
  // - a bool, whether all is finite: it is set as the operation's output `finite`, if there is one;
  // - a string, what is wrong with an index: the operation fails with it. On a GPU nothing waits to
  //   read it, and `finite` is then false. The kernel takes the place of `finite` as its last
  //   argument, where it has one.
  template <class Launcher, class Result, class... Parameters, class... Arguments>
  void Run(Launcher launcher, Result (*kernel)(const Executor&, Parameters...),
           const Arguments&... arguments) const {
    constexpr bool takes_finite = sizeof...(Parameters) > sizeof...(Arguments);
    constexpr bool is_finite = takes_finite || std::is_same_v<Result, bool>;
    constexpr bool finds_fault = std::is_same_v<Result, std::string>;
    if (on_gpu()) {
      std::optional<Tensor> room;
      const auto finite = [&] {
        if constexpr (is_finite) {
          return std::tuple(FiniteOr(&room));
        } else {
          return std::tuple();
        }
      }();
      const auto fault = [&] {
        if constexpr (finds_fault) {
          return std::tuple(FaultIn(&room));
        } else {
          return std::tuple();
        }
      }();
      std::apply([&](const auto&... each) { Launch(launcher, each...); },
                 std::tuple_cat(ForLauncher<false>(arguments...), finite, fault));
    } else if constexpr (takes_finite) {
      RequireNone(kernel(executor(), arguments..., Finite()));
    } else if constexpr (finds_fault) {
      RequireNone(kernel(executor(), arguments...));
    } else if constexpr (is_finite) {
      const bool finite = kernel(executor(), arguments...);
      if (bool* output = Finite()) *output = finite;
    } else {
      kernel(executor(), arguments...);
    }
  }

  // Calls a launcher of the CUDA library with these arguments and the workspace that it asks for.
  template <class Launcher, class... Arguments>
  void Launch(Launcher launcher, const Arguments&... arguments) const {
    size_t bytes = 0;
    CheckCuda(launcher()(arguments..., nullptr, &bytes, stream_));
    const Tensor workspace = Workspace(bytes);
    CheckCuda(launcher()(arguments..., workspace.data<void>(), &bytes, stream_));
  }

 private:
  static void CheckCuda(int error);
  static void RequireNone(const std::string& fault);
  static void RequireShape(int i, const Tensor& input, std::initializer_list<int64_t> shape);
  Tensor Output(int i, const int64_t* shape, int rank, size_t element) const;
  // The place of the output `finite`, the first or the last; null where the operation has none.
  bool* Finite() const;
  // The same, but a place in the room where the operation has none.
  bool* FiniteOr(std::optional<Tensor>* room) const;
  // The place of what a launcher finds wrong with an index.
  int32_t* FaultIn(std::optional<Tensor>* room) const;

  TF_OpKernelContext* context_;
  ThreadPool threads_;
  bool on_gpu_;
  void* stream_ = nullptr;
};

}  // namespace grace
