#include "kernels/signs/signs.h"
#include "ops/glue/op.h"

namespace grace {
namespace {

struct PackSignsOp {
  explicit PackSignsOp(const Attributes&) {}

  void Compute(const Call& call) const {
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor x = call.Input(i, 1);
      const Tensor words = call.Vector(i, TF_INT32, PackedWords(x.size(), 1));
      PackSigns(call.executor(), x.data<float>(), x.size(), words.data<uint32_t>());
    }
  }
};

struct UnpackSignsOp {
  explicit UnpackSignsOp(const Attributes& attributes) : lengths(attributes.Lengths("lengths")) {}

  void Compute(const Call& call) const {
    Require(call.outputs() == static_cast<int>(lengths.size()), "Every input needs its length.");
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor words = call.Input(i, 1);
      Require(words.size() == PackedWords(lengths[i], 1), "The words do not fit the length.");
      const Tensor out = call.Vector(i, TF_FLOAT, lengths[i]);
      UnpackSigns(call.executor(), words.data<uint32_t>(), lengths[i], out.data<float>());
    }
  }

  std::vector<int64_t> lengths;
};

struct VoteSignsOp {
  explicit VoteSignsOp(const Attributes& attributes) : lengths(attributes.Lengths("lengths")) {}

  void Compute(const Call& call) const {
    Require(call.outputs() == static_cast<int>(lengths.size()), "Every input needs its length.");
    for (int i = 0; i < call.outputs(); ++i) {
      const Tensor words = call.Input(i, 2);
      Require(words.size(1) == PackedWords(lengths[i], 1), "The words do not fit the length.");
      const Tensor out = call.Vector(i, TF_FLOAT, lengths[i]);
      VoteSigns(call.executor(), words.data<uint32_t>(), words.size(0), lengths[i],
                out.data<float>());
    }
  }

  std::vector<int64_t> lengths;
};

const bool registered[] = {
    Register<PackSignsOp>({"Grace>PackSigns",
                           {"xs: N * float"},
                           {"words: N * int32"},
                           {"N: int >= 1"},
                           Vectors<1, 1>}),
    Register<UnpackSignsOp>({"Grace>UnpackSigns",
                             {"words: N * int32"},
                             {"signs: N * float"},
                             {"N: int >= 1", "lengths: list(int)"},
                             Vectors<1, 1>}),
    Register<VoteSignsOp>({"Grace>VoteSigns",
                           {"words: N * int32"},
                           {"votes: N * float"},
                           {"N: int >= 1", "lengths: list(int)"},
                           Vectors<1, 1>}),
};

}  // namespace
}  // namespace grace
