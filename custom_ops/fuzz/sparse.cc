// Cases of the decoders of indices, of sets of them, and of values at random places.
#include "case.h"
#include "kernels/select/random_k.h"
#include "kernels/select/two_means.h"
#include "kernels/sparse/gather.h"
#include "kernels/sparse/index_sets.h"

namespace grace {
namespace {

// Tensors with ks[i] entries each.
struct Shapes {
  Shapes(Case* own, int64_t least) : lengths(own->Lengths(least)) {
    for (const int64_t n : lengths) {
      ks.push_back(n == 0 ? 0 : own->OneIn(4) ? n : 1 + own->Below(CeilDiv(n, 1 + own->Below(40))));
      entries += ks.back();
      most = std::max(most, ks.back());
    }
  }
  int64_t tensors() const { return lengths.size(); }

  std::vector<int64_t> lengths, ks;
  int64_t entries = 0, most = 0;
};

// Totals, or the sentence that says why there are none.
Results TotalsOrFault(const std::string& fault, bool finite, const Outputs& outputs) {
  if (fault.empty()) return Totals(finite, outputs);
  EXPECT(fault.find("tensor ") != std::string::npos && outputs.Intact(), "%s", fault.c_str());
  Results results;
  results.Take("the fault", fault);
  return results;
}

// Whether `count` indices below n ascend.
bool Sound(const int32_t* indices, int64_t count, int64_t n) {
  for (int64_t j = 0; j < count; ++j) {
    if (indices[j] < 0 || indices[j] >= n || (j && indices[j - 1] >= indices[j])) return false;
  }
  return true;
}

void FuzzGather(Case* own) {
  const Shapes shapes(own, 1);
  const int64_t n = shapes.lengths[0], k = shapes.ks[0];
  const Guarded<float> x = own->Floats(n);
  const Guarded<int32_t> indices = own->Indices(1, {n}, {k});
  own->Run([&](const Executor& executor) {
    Guarded<float> taken(k);
    const bool inside = Gather(executor, x.data(), n, indices.data(), k, taken.data());
    Results results;
    results.Take("Gather", inside);
    if (inside) results.Take("Gather", taken, k);
    return results;
  });
}

void FuzzScatterList(Case* own) {
  Shapes shapes(own, 0);
  // Where more entries are announced than there are elements, they cannot all count.
  if (own->OneIn(10)) {
    ++shapes.ks.back();
    ++shapes.entries;
  }
  const int64_t workers = own->Workers();
  const Guarded<float> values = own->Floats(workers * shapes.entries);
  const Guarded<int32_t> indices = own->Indices(workers, shapes.lengths, shapes.ks);
  const Guarded<int32_t> counts = own->Counts(workers * shapes.tensors(), shapes.most);
  const bool counted = own->OneIn(2);
  const Entries entries{values.data(), indices.data(), counted ? counts.data() : nullptr, workers,
                        shapes.ks};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(shapes.lengths);
    bool finite = false;
    const std::string fault = ScatterList(executor, outputs.targets, entries, factor, &finite);
    EXPECT(fault == IndexFault(executor, shapes.lengths, entries), "%s", fault.c_str());
    return TotalsOrFault(fault, finite, outputs);
  });
}

void FuzzRefineList(Case* own) {
  const Shapes shapes(own, 0);
  const Guarded<float> values = own->Floats(shapes.entries), decoded = own->Floats(shapes.entries);
  const Guarded<int32_t> indices = own->Indices(1, shapes.lengths, shapes.ks);
  own->Run([&](const Executor& executor) {
    const Outputs residual_out(shapes.lengths);
    // What is not refined stays.
    for (const DecodeOutput& target : residual_out.targets)
      std::fill_n(target.total, target.n, 7.0f);
    const std::string fault = RefineList(executor, residual_out.targets, indices.data(),
                                         values.data(), decoded.data(), shapes.ks);
    Results results;
    results.Take("the fault", fault);
    if (fault.empty()) results.Take("RefineList", residual_out.each, shapes.lengths);
    return results;
  });
}

// The words of the sets that some indices make, if these are sound, with a few bits flipped; or
// any words.
Guarded<uint32_t> SetWords(Case* own, const IndexLayouts& layouts, int64_t workers) {
  const int64_t size = layouts.words.back();
  Guarded<uint32_t> words = own->Words(workers * size);
  if (own->OneIn(3)) return words;
  for (int64_t w = 0; w < workers; ++w) {
    const Guarded<int32_t> indices = own->Indices(1, layouts.lengths, layouts.ks);
    PackIndexList(Serial(), layouts, indices.data(), nullptr, words.data() + w * size);
  }
  if (own->OneIn(2)) own->Flip(words, workers * size);
  return words;
}

void FuzzPackIndexList(Case* own) {
  const Shapes shapes(own, 1);
  const IndexLayouts layouts(shapes.lengths, shapes.ks);
  const Guarded<int32_t> indices = own->Indices(1, shapes.lengths, shapes.ks);
  const Guarded<int32_t> counts = own->Counts(shapes.tensors(), shapes.most);
  const bool counted = own->OneIn(2);
  own->Run([&](const Executor& executor) {
    const Guarded<uint32_t> words(layouts.words.back());
    const std::string fault = PackIndexList(executor, layouts, indices.data(),
                                            counted ? counts.data() : nullptr, words.data());
    Results results;
    results.Take("the fault", fault);
    if (fault.empty()) results.Take("PackIndexList", words, layouts.words.back());
    return results;
  });
}

void FuzzUnpackIndexList(Case* own) {
  const Shapes shapes(own, 1);
  const IndexLayouts layouts(shapes.lengths, shapes.ks);
  const int64_t workers = own->Workers();
  const Guarded<uint32_t> words = SetWords(own, layouts, workers);
  own->Run([&](const Executor& executor) {
    const Guarded<int32_t> indices(workers * shapes.entries);
    UnpackIndexList(executor, layouts, words.data(), workers, indices.data());
    bool inside = true;
    const int32_t* at = indices.data();
    for (int64_t w = 0; w < workers; ++w) {
      for (int64_t i = 0; i < shapes.tensors(); ++i) {
        const int64_t n = shapes.lengths[i];
        for (int64_t j = 0; j < shapes.ks[i]; ++j, ++at) inside &= *at >= 0 && *at <= n;
      }
    }
    EXPECT(inside, "%ld tensors", long(shapes.tensors()));
    Results results;
    results.Take("UnpackIndexList", indices, workers * shapes.entries);
    return results;
  });
}

void FuzzScatterSetList(Case* own) {
  const Shapes shapes(own, 1);
  const IndexLayouts layouts(shapes.lengths, shapes.ks);
  const int64_t workers = own->Workers();
  const Guarded<uint32_t> words = SetWords(own, layouts, workers);
  const Guarded<float> values = own->Floats(workers * shapes.entries);
  const Guarded<int32_t> counts = own->Counts(workers * shapes.tensors(), shapes.most);
  const bool counted = own->OneIn(2);
  const SetEntries entries{values.data(), words.data(), counted ? counts.data() : nullptr, workers};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(shapes.lengths), unpacked(shapes.lengths);
    bool finite = false, same_finite = false;
    const std::string fault =
        ScatterSetList(executor, outputs.targets, layouts, entries, factor, &finite);
    // The same as unpacking the sets first.
    const Guarded<int32_t> indices(workers * shapes.entries);
    UnpackIndexList(executor, layouts, words.data(), workers, indices.data());
    const Entries plain{values.data(), indices.data(), entries.counts, workers, shapes.ks};
    const std::string same = ScatterList(executor, unpacked.targets, plain, factor, &same_finite);
    EXPECT(fault == same, "\"%s\", not \"%s\"", fault.c_str(), same.c_str());
    Results results = TotalsOrFault(fault, finite, outputs);
    const char* differs = results.Fault(TotalsOrFault(same, same_finite, unpacked));
    EXPECT(!differs, "%s", differs);
    return results;
  });
}

void FuzzScatterRandomList(Case* own) {
  const Shapes shapes(own, 1);
  std::vector<PhiloxKey> keys;
  for (int64_t i = 0; i < shapes.tensors(); ++i) keys.push_back(own->Key());
  const Guarded<float> values = own->Floats(shapes.entries), own_scales = own->Floats(keys.size());
  std::vector<float> scales;
  if (own->OneIn(2)) scales.assign(own_scales.data(), own_scales.data() + keys.size());
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(shapes.lengths);
    const bool finite = ScatterRandomList(executor, outputs.targets, keys, shapes.ks, scales,
                                          values.data(), factor);
    return Totals(finite, outputs);
  });
}

void FuzzRandomIndices(Case* own) {
  const Shapes shapes(own, 1);
  const int64_t n = shapes.lengths[0], k = shapes.ks[0];
  const PhiloxKey key = own->Key();
  own->Run([&](const Executor& executor) {
    const Guarded<int32_t> indices(k);
    RandomIndices(executor, key, n, k, indices.data());
    EXPECT(Sound(indices.data(), k, n), "%ld of %ld elements", long(k), long(n));
    Results results;
    results.Take("RandomIndices", indices, k);
    return results;
  });
}

void FuzzExpandMeans(Case* own) {
  const Shapes shapes(own, 0);
  const int64_t workers = own->Workers();
  int64_t row = 0;
  for (const int64_t k : shapes.ks) row += PackedWords(k, 1);
  const Guarded<float> means = own->Floats(workers * 2 * shapes.tensors());
  const Guarded<uint32_t> signs = own->Words(workers * row);
  own->Run([&](const Executor& executor) {
    const Guarded<float> values(workers * shapes.entries);
    ExpandMeans(executor, means.data(), signs.data(), workers, shapes.ks, values.data());
    Results results;
    results.Take("ExpandMeans", values, workers * shapes.entries);
    return results;
  });
}

}  // namespace

std::vector<Decoder> SparseDecoders() {
  return {{"Gather", FuzzGather},
          {"ScatterList, IndexFault", FuzzScatterList},
          {"RefineList", FuzzRefineList},
          {"PackIndexList", FuzzPackIndexList},
          {"UnpackIndexList", FuzzUnpackIndexList},
          {"ScatterSetList", FuzzScatterSetList},
          {"ScatterRandomList", FuzzScatterRandomList},
          {"RandomIndices", FuzzRandomIndices},
          {"ExpandMeans", FuzzExpandMeans}};
}

}  // namespace grace
