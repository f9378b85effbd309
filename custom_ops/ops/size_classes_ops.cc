#include "kernels/codes/size_classes.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

// The room of each tensor's payload.
struct ClassForm {
  static constexpr char kParts[] = "tags: int32; numbers: int32; counts: int32";
  static constexpr char kAttributes[] = "rooms: list(int)";

  // An encoder's rooms say how many outliers there may be as well.
  explicit ClassForm(const Attributes& attributes, bool encodes) {
    const std::vector<int64_t> words = attributes.Lengths("rooms");
    const std::vector<int64_t> outliers = encodes ? attributes.Lengths("outliers") : words;
    Require(
        words.size() == static_cast<size_t>(attributes.Int("N")) && words.size() == outliers.size(),
        "Every tensor needs its room.");
    for (size_t i = 0; i < words.size(); ++i) rooms.push_back({words[i], outliers[i]});
  }

  // How long the parts of a payload for these tensors are.
  template <class Tensor>
  ClassLengths LengthsOf(const std::vector<Tensor>& list) const {
    return ClassPlaces(Lengths(list), rooms).back();
  }

  std::vector<Room> rooms;
};

struct EncodeClassesListOp : Encoder {
  explicit EncodeClassesListOp(const Attributes& attributes)
      : Encoder(attributes), bound(attributes.Int("bound")), form(attributes, true) {
    Require(bound >= 1 && bound <= 100, "The bound must be from 2^-100 to 2^-1.");
  }

  void Compute(const Call& call) const {
    const std::vector<EncodeInput> sources = Sources(call, 3);
    const ClassLengths lengths = form.LengthsOf(sources);
    const ClassParts parts{call.New<uint32_t>(0, {lengths.tags}),
                           call.New<uint32_t>(1, {lengths.numbers}),
                           call.New<int32_t>(2, {lengths.counts})};
    const uint64_t step = call.Word(after());
    call.Run(GRACE_CUDA(encode_classes), EncodeClasses, sources, multiplier,
             static_cast<int32_t>(bound), form.rooms, step, parts);
  }

  int64_t bound;
  ClassForm form;
};

struct DecodeClassesListOp : Decoder {
  explicit DecodeClassesListOp(const Attributes& attributes)
      : Decoder(attributes), factor(attributes.Float("factor")), form(attributes, false) {}

  void Compute(const Call& call) const {
    const std::vector<DecodeOutput> targets = Targets(call);
    const ClassLengths lengths = form.LengthsOf(targets);
    const int64_t workers = call.Workers();
    const ClassParts parts{call.Given<uint32_t>(0, {workers, lengths.tags}),
                           call.Given<uint32_t>(1, {workers, lengths.numbers}),
                           call.Given<int32_t>(2, {workers, lengths.counts})};
    call.Run(GRACE_CUDA(decode_classes), DecodeClasses, targets, form.rooms, parts, workers,
             factor);
  }

  float factor;
  ClassForm form;
};

const bool registered[] = {
    Register<EncodeClassesListOp>(
        "Grace>EncodeClassesList", {Encoder::kInputs, "step: int64"},
        {ClassForm::kParts, Encoder::kOutputs},
        {Encoder::kAttributes, "bound: int; outliers: list(int)", ClassForm::kAttributes}),
    Register<DecodeClassesListOp>(
        "Grace>DecodeClassesList", {ClassForm::kParts}, {Decoder::kOutputs},
        {"N: int >= 1", Decoder::kShapes, "factor: float", ClassForm::kAttributes}),
};

}  // namespace
}  // namespace grace
