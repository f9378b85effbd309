#include "ops/glue/call.h"

#include <cstddef>
#include <cstring>

#include "ops/glue/status.h"

namespace grace {
namespace {

// What a launcher tells of a faulty index; `finite` comes after them where it is no output.
constexpr int kFaultNumbers = 3;

std::string Described(const int64_t* shape, size_t rank) {
  std::string text = "[";
  for (size_t axis = 0; axis < rank; ++axis) {
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace

Shape Tensor::shape() const {
  Shape shape(rank());
  for (int axis = 0; axis < rank(); ++axis) shape[axis] = size(axis);
  return shape;
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

void Call::RequireShape(int i, const Tensor& input, std::initializer_list<int64_t> shape) {
  int axis = 0;
  for (const int64_t size : shape) {
    if (input.size(axis++) == size) continue;
    throw Invalid("Input " + std::to_string(i) + " must have the shape " +
                  Described(shape.begin(), shape.size()) + ", as the other inputs and the " +
                  "attributes say, not " + Described(input.shape().data(), shape.size()) + ".");
  }
}

float* Call::Floats(int i, int64_t elements) const {
  const Tensor input = Input(i);
  if (input.elements() != elements) {
    throw Invalid("Input " + std::to_string(i) + " must have " + std::to_string(elements) +
                  " elements, as the other inputs and the attributes say, not " +
                  std::to_string(input.elements()) + ".");
  }
  return input.data<float>();
}

int64_t Call::Workers(int64_t at_least) const {
  const int64_t workers = Input(0, 2).size();
  Require(workers >= at_least, "There must be a worker.");
  return workers;
}

Tensor Call::Output(int i, const int64_t* shape, int rank, size_t element) const {
  size_t bytes = element;
  for (int axis = 0; axis < rank; ++axis) bytes *= shape[axis];
  const TF_DataType type = TF_ExpectedOutputDataType(context_, i);
  Status status;
  Tensor output(TF_AllocateOutput(context_, i, type, shape, rank, bytes, status));
  status.Check();
  return output;
}

float* Call::Forward(int i, int input) const {
  // A Tensor of the input would keep TensorFlow from handing the memory on; this one is gone.
  const Shape shape = Input(input).shape();
  Status status;
  int forwarded = -1;
  const Tensor output(TF_ForwardInputOrAllocateOutput(
      context_, &input, 1, i, shape.data(), static_cast<int>(shape.size()), &forwarded, status));
  status.Check();
  return output.data<float>();
}

void Call::Share(int i, int input) const {
  Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context_, input, &tensor, status);
  status.Check();
  const Tensor shared(tensor);
  TF_SetOutput(context_, i, tensor, status);
  status.Check();
}

DecodeOutput Call::Updated(int i) const {
  float* const output = Forward(i, i);
  const Tensor input = Input(i);
  const float* const from = input.data<float>();
  const int64_t count = input.elements();
  if (from == output) return {output, count};
  if (on_gpu()) {
    CheckCuda(GRACE_CUDA(copy)()(from, count * sizeof *output, output, stream_));
  } else {
    executor().For(count, kGrain, [=](int64_t begin, int64_t end) {
      std::memcpy(output + begin, from + begin, (end - begin) * sizeof *output);
    });
  }
  return {output, count};
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

bool* Call::Finite() const {
  for (const int i : {0, outputs() - 1}) {
    if (TF_ExpectedOutputDataType(context_, i) == TF_BOOL) return New<bool>(i, {});
  }
  return nullptr;
}

bool* Call::FiniteOr(std::optional<Tensor>* room) const {
  if (bool* output = Finite()) return output;
  return reinterpret_cast<bool*>(FaultIn(room) + kFaultNumbers);
}

int32_t* Call::FaultIn(std::optional<Tensor>* room) const {
  if (!*room) room->emplace(Workspace(kFaultNumbers * sizeof(int32_t) + sizeof(bool)));
  return (*room)->data<int32_t>();
}

void Call::CheckCuda(int error) {
  if (error) throw std::runtime_error(CudaError(error));
}

void Call::RequireNone(const std::string& fault) {
  if (!fault.empty()) throw Invalid(fault);
}

}  // namespace grace
