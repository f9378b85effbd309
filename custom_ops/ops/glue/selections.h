// What operations on selected elements share, and what launchers get for the structs that hold
// them.
#pragma once

#include "kernels/select/sampled_top_k.h"
#include "kernels/select/top_k.h"
#include "kernels/select/two_means.h"
#include "kernels/sparse/index_sets.h"
#include "kernels/sparse/scatter_list.h"
#include "ops/glue/launch_arguments.h"
#include "ops/glue/lists.h"

namespace grace {

// How at most ks[i] of lengths[i] elements are written.
inline IndexLayouts LayoutsOf(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks) {
  RequireCounts(ks, lengths);
  for (const int64_t n : lengths) {
    Require(n <= INT32_MAX, "A tensor must have at most 2^31 - 1 elements.");
  }
  return {lengths, ks};
}

// Encoders that choose elements: `ks` of each tensor at most.
struct SelectionEncoder : Encoder {
  explicit SelectionEncoder(const Attributes& attributes, const char* counts = "ks")
      : Encoder(attributes), ks(attributes.Lengths(counts)) {}

  std::vector<EncodeInput> Sources(const Call& call, int residuals_out) const {
    std::vector<EncodeInput> sources = Encoder::Sources(call, residuals_out);
    RequireCounts(ks, sources);
    return sources;
  }
  // The first two outputs: values and indices.
  Selection Selected(const Call& call) const {
    return {ks, call.New<float>(0, {Sum(ks)}), call.New<int32_t>(1, {Sum(ks)})};
  }

  std::vector<int64_t> ks;
};

inline auto Flat(const Selection& own) {
  return std::tuple(own.ks.data(), own.values, own.indices);
}

inline auto Flat(const TwoMeans& own) {
  return std::tuple(own.ks.data(), own.means, own.signs, own.indices, own.counts);
}

inline auto Flat(const Correction& own) {
  return std::tuple_cat(Flat(own.states),
                        std::tuple(own.momentum, own.nesterov, own.masked, own.limit));
}

inline auto Flat(const Entries& own) {
  return std::tuple(own.values, own.indices, own.counts, own.workers, own.ks.data());
}

inline auto Flat(const IndexLayouts& own) { return Flat(own.each); }
inline int64_t CountOf(const IndexLayouts& own) { return CountOf(own.each); }
template <>
struct IsList<IndexLayouts> : std::true_type {};

}  // namespace grace
