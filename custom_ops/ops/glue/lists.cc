#include "ops/glue/lists.h"

#include <functional>
#include <numeric>

namespace grace {

int64_t Sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

Encoder::Encoder(const Attributes& attributes, const char* count)
    : tensors(static_cast<int>(attributes.Int("N"))),
      residuals(count ? static_cast<int>(attributes.Int(count)) : 0),
      multiplier(attributes.Float("multiplier")) {
  Require(residuals == 0 || residuals == tensors, "Every tensor needs its residual, or none.");
}

std::vector<EncodeInput> Encoder::Sources(const Call& call, int residuals_out,
                                          Elements allowed) const {
  std::vector<EncodeInput> sources;
  sources.reserve(tensors);
  for (int i = 0; i < tensors; ++i) {
    // Before the Tensor below holds the input.
    const bool forwards = residuals && residuals_out != kNone;
    float* const residual_out = forwards ? call.Forward(residuals_out + i, i) : nullptr;
    const Tensor x = call.Input(i);
    const int64_t n = x.elements();
    Require(allowed == Elements::kAny || (n >= 1 && n <= INT32_MAX),
            "A tensor must have from 1 to 2^31 - 1 elements.");
    const float* const residual = residuals ? call.Floats(tensors + i, n) : nullptr;
    sources.push_back({x.data<float>(), residual, residual_out, n});
  }
  return sources;
}

Decoder::Decoder(const Attributes& attributes, const char* ranks)
    : shapes(attributes.Shapes(ranks, "dims")) {
  Require(static_cast<int64_t>(shapes.size()) == attributes.Int("N"),
          "Every output needs its shape.");
  for (const Shape& shape : shapes) {
    sizes.push_back(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>()));
  }
}

std::vector<DecodeOutput> Decoder::Targets(const Call& call, int first, Elements allowed) const {
  std::vector<DecodeOutput> targets;
  targets.reserve(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    Require(allowed == Elements::kAny || sizes[i] <= INT32_MAX,
            "A tensor must have at most 2^31 - 1 elements.");
    targets.push_back({call.New<float>(first + static_cast<int>(i), shapes[i]), sizes[i]});
  }
  return targets;
}

Streams::Streams(const Attributes& attributes, int64_t tensors)
    : variables(attributes.Lengths("variables")), draw(attributes.Int("draw")) {
  Require(static_cast<int64_t>(variables.size()) == tensors, "Every tensor needs its variable.");
}

PhiloxKey Streams::KeyOf(const Call& call) {
  const int first = call.inputs() - 3;
  return {call.Word(first), call.Word(first + 1), call.Word(first + 2), 0};
}

std::vector<PhiloxKey> Streams::Keys(const Call& call) const {
  std::vector<PhiloxKey> keys(variables.size(), KeyOf(call));
  for (size_t i = 0; i < keys.size(); ++i) keys[i].variable_draw = Of(i);
  return keys;
}

Stream::Stream(const Attributes& attributes)
    : variable_draw(
          static_cast<uint32_t>(attributes.Int("variable") << 8 | attributes.Int("draw"))) {}

PhiloxKey Stream::KeyOf(const Call& call) const {
  PhiloxKey key = Streams::KeyOf(call);
  key.variable_draw = variable_draw;
  return key;
}

}  // namespace grace
