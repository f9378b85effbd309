#include "kernels/codes/classes.h"
#include "ops/glue/list_call.h"

namespace grace {
namespace {

// The bound of a node, and the room of each tensor's payload.
struct ClassForm {
  explicit ClassForm(const ListAttributes& attributes)
      : bound{static_cast<int32_t>(attributes.Int("bound"))} {
    Require(bound.b >= 1 && bound.b <= 100, "The bound must be from 2^-100 to 2^-1.");
    const std::vector<int64_t> bytes = attributes.Lengths("bytes_room");
    const std::vector<int64_t> halves = attributes.Lengths("halves_room");
    const std::vector<int64_t> wholes = attributes.Lengths("wholes_room");
    Require(bytes.size() == halves.size() && bytes.size() == wholes.size(),
            "Every tensor needs its room for bytes, halves and floats.");
    for (size_t i = 0; i < bytes.size(); ++i) rooms.push_back({bytes[i], halves[i], wholes[i]});
  }

  // How long the parts of a payload for these tensors are.
  template <class Tensor>
  ClassLengths LengthsOf(const std::vector<Tensor>& list) const {
    Require(list.size() == rooms.size(), "Every tensor needs its room.");
    const std::vector<int64_t> sizes = Lengths(list);
    return ClassPlaces(sizes, rooms).back();
  }

  ErrorBound bound;
  std::vector<Room> rooms;
};

struct EncodeClassesListOp {
  explicit EncodeClassesListOp(const ListAttributes& attributes)
      : form(attributes),
        tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")) {}

  void Compute(const ListCall& call) const {
    const EncodedList list(call, tensors, residuals, 5);
    const ClassLengths lengths = form.LengthsOf(list.sources());
    const Tensor tags = call.Vector(0, TF_INT32, lengths.tags);
    const Tensor bytes = call.Vector(1, TF_INT32, lengths.bytes);
    const Tensor halves = call.Vector(2, TF_INT32, lengths.halves);
    const Tensor wholes = call.Vector(3, TF_FLOAT, lengths.wholes);
    const Tensor counts = call.Vector(4, TF_INT32, lengths.counts);
    const ClassParts parts{tags.data<uint32_t>(), bytes.data<uint32_t>(), halves.data<uint32_t>(),
                           wholes.data<float>(), counts.data<int32_t>()};
    const uint64_t step = call.Word(tensors + residuals);
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(encode_classes), list.sources().data(), int64_t{tensors},
                      multiplier, form.bound, form.rooms.data(), step, &parts,
                      call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, EncodeClasses(call.executor(), list.sources(), multiplier,
                                                   form.bound, form.rooms, step, parts));
  }

  ClassForm form;
  int tensors, residuals;
  float multiplier;
};

struct DecodeClassesListOp {
  explicit DecodeClassesListOp(const ListAttributes& attributes)
      : form(attributes), shapes(attributes.Shapes()), factor(attributes.Float("factor")) {}

  void Compute(const ListCall& call) const {
    const DecodedList list(call, shapes);
    const ClassLengths lengths = form.LengthsOf(list.targets());
    const Tensor tags = call.Input(0, 2), bytes = call.Input(1, 2), halves = call.Input(2, 2);
    const Tensor wholes = call.Input(3, 2), counts = call.Input(4, 2);
    Require(tags.size(1) == lengths.tags && bytes.size(1) == lengths.bytes &&
                halves.size(1) == lengths.halves && wholes.size(1) == lengths.wholes &&
                counts.size(1) == lengths.counts,
            "The parts do not fit the shapes.");
    const int64_t workers = tags.size(0);
    Require(workers >= 1, "There must be a worker.");
    Require(bytes.size(0) == workers && halves.size(0) == workers && wholes.size(0) == workers &&
                counts.size(0) == workers,
            "The parts are of different workers.");
    const ClassParts parts{tags.data<uint32_t>(), bytes.data<uint32_t>(), halves.data<uint32_t>(),
                           wholes.data<float>(), counts.data<int32_t>()};
    if (call.on_gpu()) {
      return call.Run(GRACE_CUDA(decode_classes), list.targets().data(),
                      int64_t(list.targets().size()), form.bound, form.rooms.data(), &parts,
                      workers, factor, call.NewBool(call.outputs() - 1));
    }
    call.SetBool(call.outputs() - 1, DecodeClasses(call.executor(), list.targets(), form.bound,
                                                   form.rooms, parts, workers, factor));
  }

  ClassForm form;
  std::vector<Shape> shapes;
  float factor;
};

const bool registered[] = {
    RegisterList<EncodeClassesListOp>(
        "Grace>EncodeClassesList", {"xs: N * float", "residuals: M * float", "step: int64"},
        {"tags: int32", "bytes: int32", "halves: int32", "wholes: float", "counts: int32",
         "residuals_out: M * float", "finite: bool"},
        {"N: int >= 1", "M: int >= 0", "multiplier: float", "bound: int", "bytes_room: list(int)",
         "halves_room: list(int)", "wholes_room: list(int)"}),
    RegisterList<DecodeClassesListOp>(
        "Grace>DecodeClassesList",
        {"tags: int32", "bytes: int32", "halves: int32", "wholes: float", "counts: int32"},
        {"totals: N * float", "finite: bool"},
        {"N: int >= 1", "ranks: list(int)", "dims: list(int)", "factor: float", "bound: int",
         "bytes_room: list(int)", "halves_room: list(int)", "wholes_room: list(int)"}),
    ListOnGpu<EncodeClassesListOp>("Grace>EncodeClassesList", {"step"}),
    ListOnGpu<DecodeClassesListOp>("Grace>DecodeClassesList"),
};

}  // namespace
}  // namespace grace
