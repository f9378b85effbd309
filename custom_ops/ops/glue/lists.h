// What operations on lists of tensors share: the inputs, outputs and attributes of encoders, of
// decoders and of random streams, the strings that register them, and how they are checked.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/list.h"
#include "kernels/base/philox.h"
#include "ops/glue/call.h"

namespace grace {

int64_t Sum(const std::vector<int64_t>& numbers);

// The length of a tensor of a list, which may be given as the length itself.
template <class Item>
int64_t LengthOf(const Item& item) {
  return item.n;
}
inline int64_t LengthOf(int64_t n) { return n; }

// The sum of what size(n) is for the lengths n of a list.
template <class List, class Size>
int64_t Total(const List& list, const Size& size) {
  int64_t total = 0;
  for (const auto& item : list) total += size(LengthOf(item));
  return total;
}

// Requires as many counts as tensors, each from `least`, 0 or 1, to the tensor's elements.
template <class List>
void RequireCounts(const std::vector<int64_t>& counts, const List& list, int64_t least = 1) {
  Require(counts.size() == list.size(), "Every tensor needs its count.");
  for (size_t i = 0; i < counts.size(); ++i) {
    Require(counts[i] >= least && counts[i] <= LengthOf(list[i]),
            least ? "The count must be from 1 to the number of elements."
                  : "The count must be from 0 to the number of elements.");
  }
}

// How many elements a tensor may have: as many as int32 indices can count, an encoder's at
// least one; or any number.
enum class Elements { kIndexed, kAny };

// Gradients and the residuals that are added to them: all tensors or none have a residual.
struct Encoder {
  static constexpr char kInputs[] = "xs: N * float; residuals: M * float";
  static constexpr char kOutputs[] = "residuals_out: M * float; finite: bool";
  static constexpr char kAttributes[] = "N: int >= 1; M: int >= 0; multiplier: float";

  // `count` names the attribute that is the number of residuals; null: there are none.
  explicit Encoder(const Attributes& attributes, const char* count = "M");

  // The gradients of a call with their residuals, the first inputs. The outputs `residuals_out`
  // begin at this number; each takes the memory of its gradient where it can.
  std::vector<EncodeInput> Sources(const Call& call, int residuals_out,
                                   Elements allowed = Elements::kIndexed) const;
  // Instead of that number where an operation has no such outputs.
  static constexpr int kNone = -1;
  // The number of the first input after gradients and residuals.
  int after() const { return tensors + residuals; }

  int tensors, residuals;
  float multiplier;
};

// The tensors that a decoder makes.
struct Decoder {
  static constexpr char kOutputs[] = "totals: N * float; finite: bool";
  static constexpr char kShapes[] = "ranks: list(int); dims: list(int)";

  // `ranks` names the attribute with the ranks.
  explicit Decoder(const Attributes& attributes, const char* ranks = "ranks");

  // The outputs of a call from number `first` on.
  std::vector<DecodeOutput> Targets(const Call& call, int first = 0,
                                    Elements allowed = Elements::kIndexed) const;

  std::vector<Shape> shapes;
  std::vector<int64_t> sizes;  // the elements of each
};

// The random streams of a list, one for each tensor.
struct Streams {
  static constexpr char kInputs[] = "seed: int64; worker: int64; step: int64";
  static constexpr char kAttributes[] = "variables: list(int); draw: int";

  Streams(const Attributes& attributes, int64_t tensors);

  // Seed, worker and step, the last three inputs of a call, without variable and draw.
  static PhiloxKey KeyOf(const Call& call);
  // The `variable_draw` of tensor i.
  uint32_t Of(size_t i) const { return static_cast<uint32_t>(variables[i] << 8 | draw); }
  // The keys of all tensors.
  std::vector<PhiloxKey> Keys(const Call& call) const;

  std::vector<int64_t> variables;
  int64_t draw;
};

// One stream of a call.
struct Stream {
  static constexpr char kAttributes[] = "variable: int; draw: int";

  explicit Stream(const Attributes& attributes);

  PhiloxKey KeyOf(const Call& call) const;

  uint32_t variable_draw;
};

}  // namespace grace
