// Every kernel over a list of corners: lengths, values, alignments. The results have the same bits
// on all instruction sets, with any number of threads and in any order of the pieces, and nothing
// outside the results is written.
#include "corners.h"

#include <numeric>

#include "kernels/base/finite.h"
#include "kernels/quantize/cast.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/select/random_k.h"
#include "kernels/select/top_k.h"
#include "kernels/signs/signs.h"
#include "kernels/sparse/gather.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {

constexpr float kFactor = 0.3f;

// One list, and all that can be done with it.
class Corner {
 public:
  Corner(const std::vector<int64_t>& lengths, Kind kind, float multiplier, bool keep)
      : lengths_(lengths), multiplier_(multiplier), keep_(keep) {
    for (const int64_t n : lengths) {
      xs_.push_back(Values(kind, n, 1));
      residuals_.push_back(Values(kind, n, 2));
      ks_.push_back(CeilDiv(n, 3));
      keys_.push_back({1, 2, 3, static_cast<uint32_t>(keys_.size() << 8)});
      total_ += n;
      entries_ += ks_.back();
    }
  }

  // The results for tensors that begin `shift` elements after the start of a cache line.
  Results Of(const Executor& executor, int64_t shift) const {
    Results results;
    const Inputs inputs(*this, shift);
    Selected(executor, shift, inputs, -1.0f, &results);
    Random(executor, shift, inputs, &results);
    for (const Half type : {Half::kFloat16, Half::kBfloat16}) {
      Casts(executor, shift, inputs, type, &results);
    }
    Quantised(executor, shift, inputs, {{7, 4, 100}, Norm::kL2}, true, &results);
    // The results of the kernels below are never written past the caches, whatever their size.
    if (TooLargeToCache(total_)) return results;
    Selected(executor, shift, inputs, 0.5f, &results);
    results.Take("finite", AllFinite(executor, inputs.floats));
    for (const ListCode& code :
         {ListCode{{1, 2, 512}, Norm::kMax}, ListCode{{127, 8, 0}, Norm::kMax},
          ListCode{{300, 10, 4100}, Norm::kL2}}) {
      Quantised(executor, shift, inputs, code, code.quantization.bits != 8, &results);
    }
    Signs(executor, shift, inputs, &results);
    for (size_t i = 0; i < lengths_.size(); ++i) OfOne(executor, shift, i, &results);
    return results;
  }

 private:
  struct Inputs {
    Inputs(const Corner& own, int64_t shift) {
      for (size_t i = 0; i < own.xs_.size(); ++i) {
        xs.emplace_back(own.xs_[i], shift);
        residuals.emplace_back(own.residuals_[i], shift);
        floats.push_back({xs[i].data(), own.lengths_[i]});
      }
    }
    std::vector<Guarded<float>> xs, residuals;
    std::vector<Floats> floats;
  };

  std::vector<Guarded<float>> Outputs(int64_t shift) const {
    std::vector<Guarded<float>> outputs;
    for (const int64_t n : lengths_) outputs.emplace_back(n, shift);
    return outputs;
  }

  std::vector<EncodeInput> Sources(const Inputs& inputs,
                                   std::vector<Guarded<float>>& residual_out) const {
    std::vector<EncodeInput> sources;
    for (size_t i = 0; i < residual_out.size(); ++i) {
      sources.push_back({inputs.xs[i].data(), keep_ ? inputs.residuals[i].data() : nullptr,
                         keep_ ? residual_out[i].data() : nullptr, lengths_[i]});
    }
    return sources;
  }

  std::vector<DecodeOutput> Targets(std::vector<Guarded<float>>& totals) const {
    std::vector<DecodeOutput> targets;
    for (size_t i = 0; i < totals.size(); ++i) targets.push_back({totals[i].data(), lengths_[i]});
    return targets;
  }

  void Quantised(const Executor& executor, int64_t shift, const Inputs& inputs,
                 const ListCode& code, bool stochastic, Results* results) const {
    int64_t words_size = 0, scales_size = 0;
    for (const int64_t n : lengths_) {
      words_size += code.WordsOf(n);
      scales_size += code.ScalesOf(n);
    }
    Guarded<uint32_t> words(words_size, shift);
    Guarded<float> scales(scales_size, shift);
    std::vector<Guarded<float>> residual_out = Outputs(shift), totals = Outputs(shift);
    std::vector<Encoded> list;
    std::vector<Decoded> decoded;
    int64_t words_at = 0, scales_at = 0;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      const float* residual = keep_ ? inputs.residuals[i].data() : nullptr;
      list.push_back({{inputs.xs[i].data(), residual, multiplier_},
                      lengths_[i],
                      words.data() + words_at,
                      scales.data() + scales_at,
                      keep_ ? residual_out[i].data() : nullptr,
                      keys_[i].variable_draw});
      decoded.push_back({lengths_[i], words_at, scales_at, totals[i].data()});
      words_at += code.WordsOf(lengths_[i]);
      scales_at += code.ScalesOf(lengths_[i]);
    }
    const PhiloxKey key{1, 2, 3, 0};
    results->Take("QuantizeList finite",
                  QuantizeList(executor, list, code, stochastic ? &key : nullptr));
    results->Take("QuantizeList words", words, words_size);
    results->Take("QuantizeList scales", scales, scales_size);
    if (keep_) results->Take("QuantizeList residual_out", residual_out, lengths_);
    const Guarded<uint32_t> all_words = Repeated(words, words_size, shift);
    const Guarded<float> all_scales = Repeated(scales, scales_size, shift);
    const Rows rows{all_words.data(), all_scales.data(), kWorkers, words_size, scales_size};
    results->Take("DequantizeList finite",
                  DequantizeList(executor, rows, decoded, code.quantization, kFactor));
    results->Take("DequantizeList", totals, lengths_);
  }

  void Signs(const Executor& executor, int64_t shift, const Inputs& inputs,
             Results* results) const {
    int64_t size = 0;
    for (const int64_t n : lengths_) size += PackedWords(n, 1);
    Guarded<uint32_t> words(size, shift);
    std::vector<Guarded<float>> totals = Outputs(shift);
    std::vector<EncodeInput> list;
    std::vector<DecodeOutput> voted;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      list.push_back({inputs.xs[i].data(), nullptr, nullptr, lengths_[i]});
      voted.push_back({totals[i].data(), lengths_[i]});
    }
    results->Take("PackSignsList finite", PackSignsList(executor, list, multiplier_, words.data()));
    results->Take("PackSignsList", words, size);
    const Guarded<uint32_t> all = Repeated(words, size, shift);
    VoteSignsList(executor, all.data(), kWorkers, voted, kFactor);
    results->Take("VoteSignsList", totals, lengths_);
  }

  // The largest, or those above a threshold; and what other workers and stages do with them.
  void Selected(const Executor& executor, int64_t shift, const Inputs& inputs, float threshold,
                Results* results) const {
    const int64_t tensors = lengths_.size();
    std::vector<Guarded<float>> residual_out = Outputs(shift), totals = Outputs(shift);
    Guarded<float> values(entries_, shift);
    Guarded<int32_t> indices(entries_, shift), counts(tensors, shift);
    const Selection selection{ks_, values.data(), indices.data()};
    const bool all = threshold < 0;
    const std::vector<EncodeInput> sources = Sources(inputs, residual_out);
    results->Take("selection finite", all ? TopKList(executor, sources, multiplier_, selection)
                                          : ThresholdList(executor, sources, multiplier_, threshold,
                                                          selection, counts.data()));
    results->Take("selection values", values, entries_);
    results->Take("selection indices", indices, entries_);
    if (!all) results->Take("selection counts", counts, tensors);
    if (keep_) results->Take("selection residual_out", residual_out, lengths_);
    const Guarded<float> all_values = Repeated(values, entries_, shift);
    const Guarded<int32_t> all_indices = Repeated(indices, entries_, shift);
    const Guarded<int32_t> all_counts = Repeated(counts, tensors, shift);
    const Entries entries{all_values.data(), all_indices.data(), all ? nullptr : all_counts.data(),
                          kWorkers, ks_};
    bool finite = false;
    const std::vector<DecodeOutput> targets = Targets(totals);
    results->Take("ScatterList", ScatterList(executor, targets, entries, kFactor, &finite).empty());
    results->Take("ScatterList finite", finite);
    results->Take("ScatterList", totals, lengths_);
    if (!all) return;
    results->Take("RefineList", RefineList(executor, targets, indices.data(), values.data(),
                                           all_values.data() + entries_, ks_)
                                    .empty());
    results->Take("RefineList", totals, lengths_);
  }

  void Random(const Executor& executor, int64_t shift, const Inputs& inputs,
              Results* results) const {
    std::vector<Guarded<float>> residual_out = Outputs(shift), totals = Outputs(shift);
    Guarded<float> values(entries_, shift);
    results->Take("RandomKList finite", RandomKList(executor, Sources(inputs, residual_out),
                                                    multiplier_, keys_, ks_, values.data()));
    results->Take("RandomKList", values, entries_);
    if (keep_) results->Take("RandomKList residual_out", residual_out, lengths_);
    results->Take("ScatterRandomList finite", ScatterRandomList(executor, Targets(totals), keys_,
                                                                ks_, {}, values.data(), kFactor));
    results->Take("ScatterRandomList", totals, lengths_);
  }

  void Casts(const Executor& executor, int64_t shift, const Inputs& inputs, Half type,
             Results* results) const {
    std::vector<Guarded<float>> residual_out = Outputs(shift), totals = Outputs(shift);
    Guarded<uint16_t> halves(total_, shift);
    results->Take("CastList finite", CastList(executor, Sources(inputs, residual_out), multiplier_,
                                              type, halves.data()));
    results->Take("CastList", halves, total_);
    if (keep_) results->Take("CastList residual_out", residual_out, lengths_);
    results->Take("UncastList finite",
                  UncastList(executor, Targets(totals), type, halves.data(), kFactor));
    results->Take("UncastList", totals, lengths_);
  }

  // The kernels for one tensor.
  void OfOne(const Executor& executor, int64_t shift, size_t i, Results* results) const {
    const int64_t n = lengths_[i], k = ks_[i], blocks = CeilDiv(n, 100);
    const Quantization quantization{7, 4, 100};
    const Guarded<float> x(xs_[i], shift);
    Guarded<float> scales(blocks, shift);
    Guarded<uint32_t> codes(PackedWords(n, 4), shift), bits(PackedWords(n, 1), shift);
    BlockScales(executor, x.data(), n, 100, Norm::kL2, scales.data());
    results->Take("BlockScales", scales, blocks);
    Quantize(executor, x.data(), scales.data(), n, quantization, &keys_[i], codes.data());
    results->Take("Quantize", codes, PackedWords(n, 4));
    PackSigns(executor, x.data(), n, bits.data());
    results->Take("PackSigns", bits, PackedWords(n, 1));
    Guarded<float> values(k, shift);
    Guarded<int32_t> indices(k, shift);
    std::iota(indices.data(), indices.data() + k, 0);
    results->Take("Gather", Gather(executor, x.data(), n, indices.data(), k, values.data()));
    results->Take("Gather", values, k);
  }

  const std::vector<int64_t> lengths_;
  const float multiplier_;
  const bool keep_;
  std::vector<std::vector<float>> xs_, residuals_;
  std::vector<int64_t> ks_;
  std::vector<PhiloxKey> keys_;
  int64_t total_ = 0, entries_ = 0;
};

void Check(const std::vector<int64_t>& lengths, Kind kind, float multiplier, bool keep) {
  const Corner corner(lengths, kind, multiplier, keep);
  SetIsa("generic");
  const Results wanted = corner.Of(Serial(), 0);
  const auto check = [&](const Executor& executor, int64_t shift, const char* way) {
    const char* fault = corner.Of(executor, shift).Fault(wanted);
    EXPECT(!fault, "%s, %s: %d tensors, the first of %ld, kind %d, times %g, keep %d, shift %ld",
           fault, way, int(lengths.size()), lengths.empty() ? 0L : long(lengths[0]), int(kind),
           multiplier, keep, long(shift));
  };
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (!SetIsa(isa)) continue;
    if (kOneThreadToo) {
      check(Serial(), 0, "serial");
      check(Backwards(), 1, "backwards");
    }
    check(Threads(3), 3, "three threads");
  }
  SetIsa("auto");
}

void TestCorners() {
  const std::vector<std::vector<int64_t>> few = {
      {},
      {0},
      {0, 0, 1, 0},
      {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65},
      {127, 128, 129, 0, 511, 512, 513, 0},
      {2047, 2048, 2049, 4097}};
  for (const Kind kind :
       {Kind::kGradient, Kind::kAnyBits, Kind::kSpecial, Kind::kEqual, Kind::kZero}) {
    for (const bool keep : {false, true}) {
      for (const auto& lengths : few) Check(lengths, kind, keep ? 0.7f : 1.0f, keep);
    }
    Check(few.back(), kind, 0.7f, false);
    Check(few.back(), kind, 1.0f, true);
  }
  // Tensors that several threads share.
  const std::vector<int64_t> cut = {kGrain - 1, kGrain, kGrain + 1, 31, 0, 1};
  Check(cut, Kind::kGradient, 0.7f, true);
  Check(cut, Kind::kAnyBits, 1.0f, false);
  Check({2 * kGrain - 40, 31, 0, 70001, 1}, Kind::kSpecial, 0.7f, true);
}

// Lists that are written past the caches.
void TestLargeList() { Check({(1 << 21) + 40, 17}, Kind::kGradient, 0.7f, true); }

}  // namespace grace

int main() {
  grace::TestCorners();
  grace::TestLargeList();
  return grace::Finish("corners");
}
