#include "ops/glue/op.h"

#include <cstdio>
#include <cstring>

#include "ops/glue/status.h"

namespace grace {
namespace {

void SetOnlyOutput(TF_ShapeInferenceContext* context, TF_ShapeHandle* shape, TF_Status* status) {
  TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

}  // namespace

int64_t Attributes::Int(const char* name) const {
  Status status;
  int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status);
  status.Check();
  return value;
}

float Attributes::Float(const char* name) const {
  Status status;
  float value = 0;
  TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status);
  status.Check();
  return value;
}

bool Attributes::Bool(const char* name) const {
  Status status;
  unsigned char value = 0;
  TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status);
  status.Check();
  return value != 0;
}

std::vector<int64_t> Attributes::Ints(const char* name) const {
  Status status;
  int32_t size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &size, &bytes, status);
  status.Check();
  std::vector<int64_t> values(size);
  TF_OpKernelConstruction_GetAttrInt64List(construction_, name, values.data(), size, status);
  status.Check();
  return values;
}

std::vector<int64_t> Attributes::Lengths(const char* name) const {
  std::vector<int64_t> lengths = Ints(name);
  for (const int64_t length : lengths) Require(length >= 0, "A length must not be negative.");
  return lengths;
}

Tensor Call::Input(int i) const {
  Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context_, i, &tensor, status);
  status.Check();
  return Tensor(tensor);
}

Tensor Call::Input(int i, int rank) const {
  Tensor input = Input(i);
  if (input.rank() != rank) {
    throw Invalid("Input " + std::to_string(i) + " must have rank " + std::to_string(rank) +
                  ", not " + std::to_string(input.rank()) + ".");
  }
  return input;
}

uint32_t Call::Word(int i) const { return static_cast<uint32_t>(*Input(i, 0).data<int64_t>()); }

Tensor Call::Output(int i, TF_DataType type, const int64_t* shape, int rank, size_t bytes) const {
  Status status;
  Tensor output(TF_AllocateOutput(context_, i, type, shape, rank, bytes, status));
  status.Check();
  return output;
}

Tensor Call::Vector(int i, TF_DataType type, int64_t size) const {
  return Output(i, type, &size, 1, 4 * size);
}

Tensor Call::Shaped(int i, TF_DataType type, const std::vector<int64_t>& shape) const {
  size_t bytes = 4;
  for (const int64_t size : shape) bytes *= size;
  return Output(i, type, shape.data(), static_cast<int>(shape.size()), bytes);
}

Tensor Call::Forward(int i, int input) const {
  std::vector<int64_t> shape;
  {
    // This reference would keep TensorFlow from handing the memory on.
    const Tensor tensor = Input(input);
    for (int axis = 0; axis < tensor.rank(); ++axis) shape.push_back(tensor.size(axis));
  }
  Status status;
  int forwarded = -1;
  Tensor output(TF_ForwardInputOrAllocateOutput(
      context_, &input, 1, i, shape.data(), static_cast<int>(shape.size()), &forwarded, status));
  status.Check();
  return output;
}

Tensor Call::Workspace(size_t bytes) const {
  Status status;
  // The size without padding, as TensorFlow counts it.
  TF_AllocatorAttributes on_the_device{offsetof(TF_AllocatorAttributes, on_host) + 1, 0};
  const int64_t size = static_cast<int64_t>(bytes);
  Tensor workspace(TF_AllocateTemp(context_, TF_UINT8, &size, 1, &on_the_device, status));
  status.Check();
  return workspace;
}

void Call::Copy(const float* from, int64_t count, float* to) const {
  if (on_gpu()) {
    CheckCuda(GRACE_CUDA(copy)(from, count * sizeof *to, to, stream_));
  } else {
    executor().For(count, kGrain, [=](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, (end - begin) * sizeof *to);
    });
  }
}

void Call::SetBool(int i, bool value) const {
  *Output(i, TF_BOOL, nullptr, 0, 1).data<bool>() = value;
}

void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void OneVector(TF_ShapeInferenceContext* context, TF_Status* status) {
  SetOnlyOutput(context, TF_ShapeInferenceContextVectorFromSize(context, size_t(-1)), status);
}

void OneScalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  SetOnlyOutput(context, TF_ShapeInferenceContextScalar(context), status);
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

namespace {

// The loader finds the operation missing; this says why.
void SayWhy(const char* name, const Status& status) {
  if (TF_GetCode(status) != TF_OK) std::fprintf(stderr, "%s: %s\n", name, TF_Message(status));
}

}  // namespace

void RegisterOp(const Definition& definition, const KernelFunctions& cpu) {
  Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(definition.name);
  for (const char* input : definition.inputs) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : definition.outputs) TF_OpDefinitionBuilderAddOutput(op, output);
  for (const char* attribute : definition.attributes) TF_OpDefinitionBuilderAddAttr(op, attribute);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, definition.shapes);
  TF_RegisterOpDefinition(op, status);
  if (TF_GetCode(status) == TF_OK) {
    TF_RegisterKernelBuilder(
        definition.name,
        TF_NewKernelBuilder(definition.name, "CPU", cpu.create, cpu.compute, cpu.destroy), status);
  }
  SayWhy(definition.name, status);
}

void RegisterGpuKernel(const char* name, std::initializer_list<const char*> host_inputs,
                       const KernelFunctions& gpu) {
  if (!HasCudaLibrary()) return;
  Status status;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(name, "GPU", gpu.create, gpu.compute, gpu.destroy);
  for (const char* input : host_inputs) TF_KernelBuilder_HostMemory(kernel, input);
  TF_RegisterKernelBuilder(name, kernel, status);
  SayWhy(name, status);
}

}  // namespace grace
