#include "ops/glue/op.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "ops/glue/status.h"
#include "ops/glue/thread_pool.h"

namespace grace {
namespace {

std::vector<std::string> Split(Specs specs) {
  std::vector<std::string> each;
  for (const std::string spec : specs) {
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 2) {
      end = spec.find("; ", begin);
      each.push_back(spec.substr(begin, end - begin));
    }
  }
  return each;
}

// The loader finds the operation missing; this says why.
bool Registered(const char* name, const Status& status) {
  if (TF_GetCode(status) == TF_OK) return true;
  std::fprintf(stderr, "%s: %s\n", name, TF_Message(status));
  return false;
}

// Takes the kernel.
bool Defined(const char* name, Specs inputs, Specs outputs, Specs attributes, ShapeFunction shapes,
             bool has_effect, TF_KernelBuilder* kernel) {
  Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  for (const std::string& spec : Split(inputs)) TF_OpDefinitionBuilderAddInput(op, spec.c_str());
  for (const std::string& spec : Split(outputs)) TF_OpDefinitionBuilderAddOutput(op, spec.c_str());
  for (const std::string& spec : Split(attributes)) TF_OpDefinitionBuilderAddAttr(op, spec.c_str());
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  // TensorFlow does not read the argument: every call makes the operation stateful.
  if (has_effect) TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_RegisterOpDefinition(op, status);
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(name, kernel, status);
  return Registered(name, status);
}

}  // namespace

void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void Vectors(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* vector = TF_ShapeInferenceContextVectorFromSize(context, size_t(-1));
  // No function of the C API tells how many outputs there are; the first beyond them is refused. In
  // some versions of TensorFlow the second is refused already; its shape then stays unknown.
  for (int i = 0; TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextSetOutput(context, i, vector, status);
  }
  TF_SetStatus(status, TF_OK, "");
  TF_DeleteShapeHandle(vector);
}

void OneScalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* scalar = TF_ShapeInferenceContextScalar(context);
  TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
  TF_DeleteShapeHandle(scalar);
}

void FailConstruction(TF_OpKernelConstruction* construction) {
  Status status;
  status.FromException();
  TF_OpKernelConstruction_Failure(construction, status);
}

void FailCall(TF_OpKernelContext* context) {
  Status status;
  status.FromException();
  TF_OpKernelContext_Failure(context, status);
}

bool RegisterOp(const char* name, Specs inputs, Specs outputs, Specs attributes,
                ShapeFunction shapes, const KernelFunctions& cpu) {
  return Defined(name, inputs, outputs, attributes, shapes, false,
                 TF_NewKernelBuilder(name, "CPU", cpu.create, cpu.compute, cpu.destroy));
}

bool RegisterWaitingOp(const char* name, Specs inputs, Specs outputs, Specs attributes,
                       const WaitingFunctions& cpu) {
  return Defined(name, inputs, outputs, attributes, UnknownShapes, true,
                 TF_NewAsyncKernelBuilder(name, "CPU", cpu.create, cpu.start, cpu.destroy));
}

// TensorFlow gives the address of an argument of its own function, which has returned when an
// operation that waits ends. Behind the address is a function of the C++ library in every release
// that LayoutIsKnown names, so a copy of that is taken.
Done DoneOf(TF_AsyncOpKernelDoneCallback* callback) { return *reinterpret_cast<Done*>(callback); }

bool KnowsDone() { return FindInTensorFlow("TF_RunAsyncOpKernelDoneCallback") != nullptr; }

bool RegisterGpuKernel(const char* name, Specs inputs, const KernelFunctions& gpu) {
  if (!HasCudaLibrary()) return true;
  Status status;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(name, "GPU", gpu.create, gpu.compute, gpu.destroy);
  for (const std::string& input : Split(inputs)) {
    static const std::set<std::string> on_host = {"seed", "worker", "step", "factor", "when"};
    const std::string own = input.substr(0, input.find(':'));
    if (on_host.count(own)) TF_KernelBuilder_HostMemory(kernel, own.c_str());
  }
  TF_RegisterKernelBuilder(name, kernel, status);
  return Registered(name, status);
}

}  // namespace grace
