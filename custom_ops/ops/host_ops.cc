#include <chrono>
#include <string>
#include <utility>

#include "kernels/host/host_queue.h"
#include "ops/glue/host_queues.h"
#include "ops/glue/op.h"
#include "ops/glue/status.h"

namespace grace {
namespace {

// What the collectives have in common. The input `mark` orders the uses of one key.
struct HostOp {
  static constexpr const char* kAttributes = "segment: int; key: int; seconds: float";
  static constexpr const char* kTypes =
      "T: {float, half, bfloat16, double, int32, int64, uint32, uint64}";

  explicit HostOp(const Attributes& attributes)
      : segment(attributes.Int("segment")),
        key(attributes.Int("key")),
        seconds(attributes.Float("seconds")),
        type(attributes.Type("T")) {}

  int64_t Bytes() const {
    if (type == TF_HALF || type == TF_BFLOAT16) return 2;
    return type == TF_FLOAT || type == TF_INT32 || type == TF_UINT32 ? 4 : 8;
  }

  void Submit(const Call& call, int64_t bytes, std::function<void(HostCollectives&, Deadline)> run,
              Done done) const {
    Deadline deadline = Deadline::max();
    if (seconds > 0) {
      const std::chrono::duration<double> patience(seconds);
      deadline = std::chrono::steady_clock::now() +
                 std::chrono::duration_cast<Deadline::duration>(patience);
    }
    const auto end = [call = call.context(), key = key, done](const HostFailure* failure) {
      if (failure) {
        const TF_Code codes[] = {TF_UNAVAILABLE, TF_DEADLINE_EXCEEDED, TF_INTERNAL};
        const std::string text = "Collective instance " + std::to_string(key) +
                                 " of the processes of a host cannot end: " + failure->text;
        Status status;
        TF_SetStatus(status, codes[failure->kind], text.c_str());
        TF_OpKernelContext_Failure(call, status);
      }
      done();
    };
    QueueOf(segment).Submit({key, bytes, deadline, std::move(run), end});
  }

  int64_t segment, key;
  float seconds;
  TF_DataType type;
};

struct HostSumOp : HostOp {
  explicit HostSumOp(const Attributes& attributes)
      : HostOp(attributes), narrow(attributes.Bool("narrow")) {
    Require(!narrow || type == TF_FLOAT, "Only float is added up as bfloat16.");
  }

  void Start(const Call& call, Done done) const {
    std::vector<Summand> list;
    int64_t bytes = 0;
    for (int i = 0; i < call.outputs(); ++i) {
      void* sum = call.Forward(i, i);  // before the Tensor below holds the input
      const Tensor own = call.Input(i);
      list.push_back({own.data<void>(), sum, own.elements()});
      bytes += own.elements() * Bytes();
    }
    const NumberType numbers = Numbers();
    Submit(
        call, bytes,
        [list = std::move(list), numbers](HostCollectives& all, Deadline deadline) {
          all.Sum(list, numbers, deadline);
        },
        std::move(done));
  }

  NumberType Numbers() const {
    switch (type) {
      case TF_FLOAT:
        return narrow ? NumberType::kFloatAsBfloat16 : NumberType::kFloat;
      case TF_HALF:
        return NumberType::kFloat16;
      case TF_BFLOAT16:
        return NumberType::kBfloat16;
      case TF_DOUBLE:
        return NumberType::kDouble;
      default:
        return Bytes() == 4 ? NumberType::kInt32 : NumberType::kInt64;
    }
  }

  bool narrow;
};

struct HostJoinOp : HostOp {
  explicit HostJoinOp(const Attributes& attributes)
      : HostOp(attributes),
        rows(attributes.Int("rows")),
        place(attributes.Int("place")),
        begins(Offsets(attributes.Lengths("lengths"))) {
    Require(rows >= 0, "The number of rows must not be negative.");
    Require(place >= 0 && place < QueueOf(segment).places(),
            "The place must be at least 0 and below the number of places.");
    Require(static_cast<int64_t>(begins.size()) == QueueOf(segment).places() + 1,
            "Each place has a length.");
  }

  void Start(const Call& call, Done done) const {
    const int64_t columns = begins[place + 1] - begins[place], n = begins.back();
    const Tensor own = call.Input(0, 2);
    Require(own.size(0) == rows && own.size(1) == columns,
            "The piece has the length of its place.");
    void* whole = Bytes() == 2   ? static_cast<void*>(call.New<uint16_t>(0, {rows, n}))
                  : Bytes() == 4 ? static_cast<void*>(call.New<uint32_t>(0, {rows, n}))
                                 : static_cast<void*>(call.New<uint64_t>(0, {rows, n}));
    const Joined joined{own.data<void>(), whole, rows, Bytes(), begins};
    Submit(
        call, rows * n * Bytes(),
        [joined](HostCollectives& all, Deadline deadline) { all.Join(joined, deadline); },
        std::move(done));
  }

  int64_t rows, place;
  std::vector<int64_t> begins;
};

const bool registered[] = {
    RegisterWaiting<HostSumOp>(
        "Grace>HostSum", {"xs: N * T", "mark: resource"}, {"sums: N * T"},
        {"N: int >= 1", HostOp::kTypes, HostOp::kAttributes, "narrow: bool"}),
    RegisterWaiting<HostJoinOp>(
        "Grace>HostJoin", {"x: T", "mark: resource"}, {"whole: T"},
        {HostOp::kTypes, HostOp::kAttributes, "rows: int; place: int; lengths: list(int)"}),
};

}  // namespace
}  // namespace grace
