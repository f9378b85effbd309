// Cases of the decoders that have a code for every element.
#include "case.h"
#include "kernels/codes/byte_codes.h"
#include "kernels/codes/quantiles.h"
#include "kernels/codes/rotated_codes.h"
#include "kernels/codes/size_classes.h"
#include "kernels/codes/ternary.h"
#include "kernels/quantize/cast.h"
#include "kernels/quantize/narrow.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/signs/scaled_signs.h"
#include "kernels/signs/signs.h"
#include "tests/lists_of_one.h"

namespace grace {
namespace {

int64_t Sum(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t n : lengths) sum += n;
  return sum;
}

Quantization AnyQuantization(Case* own, bool minmax) {
  const int32_t bits = static_cast<int32_t>(2 + own->Below(15));
  const int64_t most = ((int64_t{1} << bits) - 1) / 2;
  const int64_t levels = minmax          ? (int64_t{1} << bits) - 1
                         : own->OneIn(2) ? most
                                         : 1 + own->Below(most);
  constexpr int64_t blocks[] = {1, 5, 32, 100, 512, 4100};
  return {static_cast<int32_t>(levels), bits, blocks[own->Below(6)], minmax};
}

// The largest that codes of these scales may stand for.
float BoundOf(const float* scales, int64_t n) {
  float bound = 0.0f;
  for (int64_t i = 0; i < n; ++i) bound += std::fmax(scales[i], 0.0f);
  return bound * 1.001f;
}

void FuzzDequantize(Case* own) {
  const int64_t n = own->Length(), workers = own->Workers();
  const Quantization q = AnyQuantization(own, false);
  const int64_t words_size = PackedWords(n, q.bits), blocks = CeilDiv(n, q.block);
  const Guarded<uint32_t> words = own->Words(workers * words_size);
  const Guarded<float> scales = own->Floats(workers * blocks);
  const float bound = BoundOf(scales.data(), workers * blocks);
  own->Run([&](const Executor& executor) {
    Guarded<float> sum(n);
    DequantizeSum(executor, words.data(), scales.data(), workers, n, q, sum.data());
    bool bounded = true;
    for (int64_t i = 0; i < n; ++i) bounded &= !(std::fabs(sum[i]) > bound);
    EXPECT(bounded, "%ld elements of %d bits", long(n), q.bits);
    Results results;
    results.Take("DequantizeSum", sum, n);
    return results;
  });
}

void FuzzDequantizeList(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  ListCode code{AnyQuantization(own, own->OneIn(3)), Norm::kMax};
  if (own->OneIn(3)) code.quantization.block = 0;
  std::vector<Decoded> list;
  int64_t words_size = 0, scales_size = 0;
  for (const int64_t n : lengths) {
    list.push_back({n, words_size, scales_size, nullptr});
    words_size += code.WordsOf(n);
    scales_size += code.ScalesOf(n);
  }
  const int64_t workers = own->Workers();
  const Guarded<uint32_t> words = own->Words(workers * words_size);
  const Guarded<float> scales = own->Floats(workers * scales_size);
  const Rows rows{words.data(), scales.data(), workers, words_size, scales_size};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    std::vector<Decoded> decoded = list;
    for (size_t i = 0; i < list.size(); ++i) decoded[i].total = outputs.targets[i].total;
    const bool finite = DequantizeList(executor, rows, decoded, code.quantization, factor);
    return Totals(finite, outputs);
  });
}

void FuzzVoteSignsList(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  int64_t row = 0;
  for (const int64_t n : lengths) row += PackedWords(n, 1);
  const int64_t workers = own->OneIn(10) ? 40 : own->Workers();
  const Guarded<uint32_t> words = own->Words(workers * row);
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    VoteSignsList(executor, words.data(), workers, outputs.targets, 0.5f);
    return Totals(true, outputs);
  });
}

void FuzzTernary(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  const int32_t bits = own->OneIn(2) ? kTrits : static_cast<int32_t>(2 + own->Below(15));
  int64_t row = 0;
  for (const int64_t n : lengths) row += TernaryWords(n, bits);
  const int64_t workers = own->Workers(), tensors = lengths.size();
  const Guarded<uint32_t> words = own->Words(workers * row);
  const Guarded<float> scales = own->Floats(workers * tensors);
  const TernaryRows rows{words.data(), scales.data(), workers};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = TernaryDecode(executor, rows, outputs.targets, bits, factor);
    return Totals(finite, outputs);
  });
}

void FuzzBytes(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  constexpr int64_t blocks[] = {0, 32, 96, 256, 4096};
  const int64_t block = blocks[own->Below(5)], workers = own->Workers();
  int64_t words_size = 0, scales_size = 0;
  for (const int64_t n : lengths) {
    words_size += ByteWords(n);
    scales_size += block ? CeilDiv(n, block) : n > 0;
  }
  const Guarded<uint32_t> words = own->Words(workers * words_size);
  const Guarded<float> scales = own->Floats(workers * scales_size);
  const ByteRows rows{words.data(), scales.data(), workers};
  const bool tree = own->OneIn(2);
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = tree ? DecodeTree(executor, outputs.targets, rows, block, factor)
                             : DecodePowers(executor, outputs.targets, rows, factor);
    return Totals(finite, outputs);
  });
}

void FuzzClasses(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  std::vector<Room> rooms;
  const auto room = [own](int64_t n) { return own->OneIn(3) ? 0 : own->Below(n + 2); };
  for (const int64_t n : lengths) rooms.push_back({room(n), 0});
  const int64_t workers = own->Workers();
  const ClassLengths row = ClassPlaces(lengths, rooms).back();
  const Guarded<uint32_t> tags = own->Words(workers * row.tags);
  const Guarded<uint32_t> numbers = own->Words(workers * row.numbers);
  const Guarded<int32_t> counts = own->Counts(workers * row.counts, 300);
  const ClassParts parts{tags.data(), numbers.data(), counts.data()};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = DecodeClasses(executor, outputs.targets, rooms, parts, workers, factor);
    return Totals(finite, outputs);
  });
}

Guarded<uint16_t> Halves(Case* own, int64_t n) {
  const Guarded<uint32_t> words = own->Words(CeilDiv(n, 2));
  Guarded<uint16_t> halves(n, own->Below(16));
  std::copy_n(reinterpret_cast<const unsigned char*>(words.data()), 2 * n,
              reinterpret_cast<unsigned char*>(halves.data()));
  return halves;
}

void FuzzUncastList(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  const Guarded<uint16_t> halves = Halves(own, Sum(lengths));
  const Half type = own->OneIn(2) ? Half::kFloat16 : Half::kBfloat16;
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = UncastList(executor, outputs.targets, type, halves.data(), factor);
    return Totals(finite, outputs);
  });
}

void FuzzFromHalvesList(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  const Guarded<uint16_t> halves = Halves(own, Sum(lengths));
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    std::vector<Widened> list;
    const uint16_t* at = halves.data();
    for (const DecodeOutput& target : outputs.targets) {
      list.push_back({at, target.total, target.n});
      at += target.n;
    }
    FromHalvesList(executor, list);
    Results results;
    results.Take("FromHalvesList", outputs.each, lengths);
    return results;
  });
}

void FuzzQuantiles(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  const int32_t buckets = static_cast<int32_t>(2 + own->Below(255));
  const int64_t workers = own->Workers();
  int64_t row = 0;
  for (const int64_t n : lengths) row += PackedWords(n, IdBits(buckets));
  const Guarded<uint32_t> words = own->Words(workers * row);
  const Guarded<float> means = own->Floats(workers * buckets * int64_t(lengths.size()));
  const QuantileRows rows{words.data(), means.data(), workers};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = DecodeQuantiles(executor, outputs.targets, rows, buckets, factor);
    return Totals(finite, outputs);
  });
}

void FuzzRotated(Case* own) {
  const std::vector<int64_t> lengths = own->Lengths();
  const int32_t bits = static_cast<int32_t>(1 + own->Below(8)), count = 1 << (bits - 1);
  std::vector<float> centroids(count);
  for (int32_t k = 0; k < count; ++k) centroids[k] = 3.0f * (k + 0.5f) / count;
  const RotatedCode code(bits, 64, int64_t{32} << own->Below(7), own->OneIn(2), centroids);
  std::vector<PhiloxKey> keys;
  int64_t words_size = 0, scales_size = 0;
  for (const int64_t n : lengths) {
    keys.push_back(own->Key());
    words_size += code.WordsOf(n);
    scales_size += code.ScalesOf(n);
  }
  const int64_t workers = own->Workers();
  const Guarded<uint32_t> words = own->Words(workers * words_size);
  const Guarded<float> scales = own->Floats(workers * scales_size);
  const RotatedRows rows{words.data(), scales.data(), workers};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = DecodeRotated(executor, outputs.targets, rows, keys, code, factor);
    return Totals(finite, outputs);
  });
}

void FuzzScaledSigns(Case* own) {
  std::vector<int64_t> lengths = own->Lengths();
  std::vector<Cells> cells;
  int64_t words_size = 0, levels_size = 0;
  for (int64_t& n : lengths) {
    constexpr int64_t blocks[] = {0, 32, 64, 2048, 4096};
    cells.push_back({blocks[own->Below(5)], 1});
    if (own->OneIn(3)) {
      cells.back() = {0, 1 + own->Below(40)};
      n = n / cells.back().columns * cells.back().columns;
    }
    words_size += PackedWords(n, 1);
    levels_size += cells.back().Count(n);
  }
  const int64_t workers = own->Workers();
  const bool one_side = own->OneIn(2);
  const Guarded<uint32_t> words = own->Words(workers * words_size);
  const Guarded<float> low = own->Floats(workers * levels_size);
  const Guarded<float> high = own->Floats(workers * levels_size);
  const ScaledRows rows{
      words.data(), one_side ? nullptr : low.data(), high.data(), workers, words_size, levels_size};
  const float factor = own->Factor();
  own->Run([&](const Executor& executor) {
    const Outputs outputs(lengths);
    const bool finite = SumScaledSignList(executor, rows, cells, outputs.targets, factor);
    return Totals(finite, outputs);
  });
}

}  // namespace

std::vector<Decoder> CodeDecoders() {
  return {{"DequantizeList of one", FuzzDequantize},
          {"DequantizeList", FuzzDequantizeList},
          {"VoteSignsList", FuzzVoteSignsList},
          {"TernaryDecode", FuzzTernary},
          {"DecodeTree, DecodePowers", FuzzBytes},
          {"DecodeClasses", FuzzClasses},
          {"UncastList", FuzzUncastList},
          {"FromHalvesList", FuzzFromHalvesList},
          {"DecodeQuantiles", FuzzQuantiles},
          {"DecodeRotated", FuzzRotated},
          {"SumScaledSignList", FuzzScaledSigns}};
}

}  // namespace grace
