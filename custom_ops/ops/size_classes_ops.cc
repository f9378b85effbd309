#include "kernels/codes/size_classes.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// The bound of a node, and the room of each tensor's payload.
struct ClassForm {
  static constexpr char kParts[] =
      "tags: int32; bytes: int32; halves: int32; wholes: float; counts: int32";
  static constexpr char kAttributes[] =
      "bound: int; bytes_room: list(int); halves_room: list(int); wholes_room: list(int)";

  explicit ClassForm(const Attributes& attributes)
      : bound{static_cast<int32_t>(attributes.Int("bound"))} {
    Require(bound.b >= 1 && bound.b <= 100, "The bound must be from 2^-100 to 2^-1.");
    const std::vector<int64_t> bytes = attributes.Lengths("bytes_room");
    const std::vector<int64_t> halves = attributes.Lengths("halves_room");
    const std::vector<int64_t> wholes = attributes.Lengths("wholes_room");
    Require(bytes.size() == static_cast<size_t>(attributes.Int("N")) &&
                bytes.size() == halves.size() && bytes.size() == wholes.size(),
            "Every tensor needs its room for bytes, halves and floats.");
    for (size_t i = 0; i < bytes.size(); ++i) rooms.push_back({bytes[i], halves[i], wholes[i]});
  }

  // How long the parts of a payload for these tensors are.
  template <class Tensor>
  ClassLengths LengthsOf(const std::vector<Tensor>& list) const {
    return ClassPlaces(Lengths(list), rooms).back();
  }

  ErrorBound bound;
  std::vector<Room> rooms;
};

struct EncodeClassesListOp : Encoder {
  explicit EncodeClassesListOp(const Attributes& attributes)
      : Encoder(attributes), form(attributes) {}

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 5);
    const ClassLengths lengths = form.LengthsOf(sources);
    const ClassParts parts{
        call.New<uint32_t>(0, {lengths.tags}), call.New<uint32_t>(1, {lengths.bytes}),
        call.New<uint32_t>(2, {lengths.halves}), call.New<float>(3, {lengths.wholes}),
        call.New<int32_t>(4, {lengths.counts})};
    const uint64_t step = call.Word(after());
    call.Run(GRACE_CUDA(encode_classes), EncodeClasses, sources, multiplier, form.bound, form.rooms,
             step, parts);
  }

  ClassForm form;
};

struct DecodeClassesListOp : Decoder {
  explicit DecodeClassesListOp(const Attributes& attributes)
      : Decoder(attributes), factor(attributes.Float("factor")), form(attributes) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const ClassLengths lengths = form.LengthsOf(targets);
    const int64_t workers = call.Workers();
    const ClassParts parts{call.Given<uint32_t>(0, {workers, lengths.tags}),
                           call.Given<uint32_t>(1, {workers, lengths.bytes}),
                           call.Given<uint32_t>(2, {workers, lengths.halves}),
                           call.Given<float>(3, {workers, lengths.wholes}),
                           call.Given<int32_t>(4, {workers, lengths.counts})};
    call.Run(GRACE_CUDA(decode_classes), DecodeClasses, targets, form.bound, form.rooms, parts,
             workers, factor);
  }

  float factor;
  ClassForm form;
};

const bool registered[] = {
    Register<EncodeClassesListOp>("Grace>EncodeClassesList", {Encoder::kInputs, "step: int64"},
                                  {ClassForm::kParts, Encoder::kOutputs},
                                  {Encoder::kAttributes, ClassForm::kAttributes}),
    Register<DecodeClassesListOp>(
        "Grace>DecodeClassesList", {ClassForm::kParts}, {Decoder::kOutputs},
        {"N: int >= 1", Decoder::kShapes, "factor: float", ClassForm::kAttributes}),
};

}  // namespace
}  // namespace grace
