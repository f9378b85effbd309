// How an operation is written.
//
// An operation is a struct with a constructor from Attributes, which reads and checks what a node
// says, and `Compute(const Call&) const`, which finds the inputs, makes the outputs and runs a
// kernel. Both throw Invalid for what does not fit. Register makes the operation known, with its
// kernel for the CPU and its kernel for GPUs:
//
//   struct CastListOp : Encoder {  // lists.h: gradients and their residuals
//     explicit CastListOp(const Attributes& attributes)
//         : Encoder(attributes), half(HalfOf(attributes)) {}
//
//     void Compute(const Call& call) const {
//       const std::vector<EncodeInput> sources = Sources(call, 1);  // after one output
//       uint16_t* halves = call.New<uint16_t>(0, {...});
//       call.Run(GRACE_CUDA(cast_list), CastList, sources, multiplier, half, halves);
//     }
//
//     Half half;
//   };
//
//   const bool registered = Register<CastListOp>(
//       "Grace>CastList", {Encoder::kInputs}, {"halves: dtype", Encoder::kOutputs},
//       {Encoder::kAttributes, "dtype: {half, bfloat16}"});
//
// Encoder, Decoder and Streams read the inputs, outputs and attributes that they name. call.Given
// is an input, checked against its shape; call.New is an output. call.Run runs the kernel that has
// these arguments, or on a GPU its launcher, and sets the output `finite`. Where the two differ in
// more than call.Run knows, Compute asks call.on_gpu() and calls call.Launch.
#pragma once

#include <functional>
#include <initializer_list>

#include "ops/glue/attributes.h"
#include "ops/glue/call.h"
#include "ops/glue/lists.h"
#include "ops/glue/tf_c_api.h"

namespace grace {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// What attributes tell, which shape functions of the C API cannot read; Python sets the shapes.
void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Every output is a vector, of a length that attributes tell.
void Vectors(TF_ShapeInferenceContext* context, TF_Status* status);
void OneScalar(TF_ShapeInferenceContext* context, TF_Status* status);

// Inputs, outputs or attributes, each as "name: type"; several may be in one string, with "; "
// between them.
using Specs = std::initializer_list<const char*>;

// The functions that TensorFlow calls for an operation.
struct KernelFunctions {
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
  void (*destroy)(void*);
};

// The same for an operation that ends after its function has returned.
struct WaitingFunctions {
  void* (*create)(TF_OpKernelConstruction*);
  void (*start)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
  void (*destroy)(void*);
};

bool RegisterOp(const char* name, Specs inputs, Specs outputs, Specs attributes,
                ShapeFunction shapes, const KernelFunctions& cpu);
// Its runs have an effect: TensorFlow neither leaves one out nor makes two of them one.
bool RegisterWaitingOp(const char* name, Specs inputs, Specs outputs, Specs attributes,
                       const WaitingFunctions& cpu);
// Nothing where there is no CUDA library. Inputs named seed, worker, step, factor and when, which
// are scalars that a launcher or the operation itself takes, are in the host's memory.
bool RegisterGpuKernel(const char* name, Specs inputs, const KernelFunctions& gpu);
void FailConstruction(TF_OpKernelConstruction* construction);
void FailCall(TF_OpKernelContext* context);

// Ends one run of an operation that waits; the failure comes before.
using Done = std::function<void()>;
// TensorFlow's callback as an object that may outlive the function that got it.
Done DoneOf(TF_AsyncOpKernelDoneCallback* callback);
// Whether DoneOf knows this version of TensorFlow.
bool KnowsDone();

template <class Op>
void* Created(TF_OpKernelConstruction* construction) {
  try {
    return new Op(Attributes(construction));
  } catch (...) {
    FailConstruction(construction);
    return nullptr;
  }
}

template <class Op>
void Destroy(void* op) {
  delete static_cast<Op*>(op);
}

template <class Op, Place kPlace>
KernelFunctions FunctionsOf() {
  return {Created<Op>,
          [](void* op, TF_OpKernelContext* context) {
            try {
              static_cast<const Op*>(op)->Compute(Call(context, kPlace));
            } catch (...) {
              FailCall(context);
            }
          },
          Destroy<Op>};
}

// Defines an operation and its kernel for the CPU alone. This and Register are for static
// initialisers, so that loading the library is enough.
template <class Op>
bool RegisterForCpu(const char* name, Specs inputs, Specs outputs, Specs attributes,
                    ShapeFunction shapes = UnknownShapes) {
  return RegisterOp(name, inputs, outputs, attributes, shapes, FunctionsOf<Op, Place::kCpu>());
}

// Defines an operation for the CPU that waits without holding a thread. It has
// `Start(const Call&, Done) const`, which calls Done once, unless it throws.
template <class Op>
bool RegisterWaiting(const char* name, Specs inputs, Specs outputs, Specs attributes) {
  return RegisterWaitingOp(
      name, inputs, outputs, attributes,
      {Created<Op>,
       [](void* op, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback) {
         const Done done = DoneOf(callback);
         try {
           static_cast<const Op*>(op)->Start(Call(context, Place::kCpu), done);
         } catch (...) {
           FailCall(context);
           done();
         }
       },
       Destroy<Op>});
}

// Defines an operation with its kernels for the CPU and for GPUs.
template <class Op>
bool Register(const char* name, Specs inputs, Specs outputs, Specs attributes,
              ShapeFunction shapes = UnknownShapes) {
  return RegisterForCpu<Op>(name, inputs, outputs, attributes, shapes) &&
         RegisterGpuKernel(name, inputs, FunctionsOf<Op, Place::kGpu>());
}

}  // namespace grace
