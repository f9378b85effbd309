#include "kernels/base/signed_sums.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// TensorFlow's own way is a condition around some twenty operations, whose branches a step traces
// for every bucket.
struct SignedSumsOp {
  explicit SignedSumsOp(const Attributes& attributes)
      : count(attributes.Int("count")), stream(attributes) {}

  void Compute(const Call& call) const {
    std::vector<Floats> xs;
    int64_t total = 0;
    const bool when = *call.Given<bool>(0, {});
    for (int i = 1; when && i < call.inputs() - 3; ++i) {
      const Tensor x = call.Input(i);
      xs.push_back({x.data<float>(), x.elements()});
      total += x.elements();
    }
    float* const sums = call.New<float>(0, {when ? count ? count : total : 0});
    double* const square = call.New<double>(1, Shape{});
    if (!when) {
      *square = 0;
    } else if (count) {
      *square = SignedSums(call.executor(), xs, stream.KeyOf(call), count, sums);
    } else {
      *square = EndToEnd(call.executor(), xs, sums);
    }
  }

  int64_t count;
  Stream stream;
};

const bool registered = RegisterForCpu<SignedSumsOp>(
    "Grace>SignedSums", {"when: bool; xs: N * float", Streams::kInputs},
    {"sums: float", "square: double"}, {"N: int >= 1; count: int >= 0", Stream::kAttributes});

}  // namespace
}  // namespace grace
