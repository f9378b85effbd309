#include "device.h"
#include "kernels/quantize/quantize_list.h"

namespace grace {

// What a turn chooses of an encoder.
struct Choice {
  ListCode code;
  float multiplier;
  bool stochastic, residual, keep, in_place;
};

constexpr int64_t kBlocks[] = {0, 32, 256, 1, 96, 33, 7, 2048, 4096, 1000, 16, 65, 5000, 100, 2047};

Choice Chosen(int turn) {
  const int32_t bits = 2 + turn % 15;
  const auto norm = static_cast<Norm>(turn / 2 % 3);
  const bool minmax = norm == Norm::kMinMax;
  int32_t levels = minmax ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
  if (!minmax && turn % 7 == 3) levels = 1 + levels / 2;
  const int64_t block = kBlocks[turn * 4 % 15];
  const bool residual = turn % 3 == 1;
  return {{{levels, bits, block, minmax}, norm},
          turn % 4 < 3 ? 1.0f : 0.3f,
          turn % 5 < 3,
          residual,
          turn % 4 != 2,
          turn % 8 == 5};
}

// Copies of tensors, which an encoder may overwrite, and what it writes.
struct Sent {
  Sent(const std::vector<int64_t>& lengths, Kind kind, const Choice& choice)
      : xs(lengths, kind, 1),
        residuals(DeviceList::Residuals(lengths, kind)),
        residual_out(lengths),
        words_size(0),
        scales_size(0) {
    for (const int64_t n : lengths) {
      words_size += choice.code.WordsOf(n);
      scales_size += choice.code.ScalesOf(n);
    }
    words = Guarded<uint32_t>(words_size, 1);
    scales = Guarded<float>(scales_size, 1);
    uint32_t* word = words.data();
    float* scale = scales.data();
    for (size_t i = 0; i < lengths.size(); ++i) {
      const Accumulated source{xs[i], choice.residual ? residuals[i] : nullptr, choice.multiplier};
      float* left = choice.in_place ? xs[i] : residual_out[i];
      list.push_back({source, lengths[i], word, scale, choice.keep ? left : nullptr,
                      static_cast<uint32_t>(i << 8 | 5), i % 2 ? 0x40000000u : 0u});
      word += choice.code.WordsOf(lengths[i]);
      scale += choice.code.ScalesOf(lengths[i]);
    }
  }
  // Equal but for the bits of NaN.
  bool SameScales(const Sent& other) const {
    bool same = scales.Intact();
    for (int64_t i = 0; i < scales_size; ++i) {
      const float a = scales.data()[i], b = other.scales.data()[i];
      same &= BitsOf(a) == BitsOf(b) || (a != a && b != b);
    }
    return same;
  }

  DeviceList xs, residuals, residual_out;
  int64_t words_size, scales_size;
  Guarded<uint32_t> words{0};
  Guarded<float> scales{0};
  std::vector<Encoded> list;
};

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const Choice choice = Chosen(turn);
  const PhiloxKey key{9, 4, 7, 0};
  const PhiloxKey* stream = choice.stochastic ? &key : nullptr;
  const Sent theirs(lengths, kind, choice);
  const bool finite = QuantizeList(Serial(), theirs.list, choice.code, stream);
  OnOneOrder(turn / 2, [&](const char* order) {
    const Sent ours(lengths, kind, choice);
    Guarded<bool> flag(1);
    Launched(grace_cuda_quantize_list, ours.list.data(), int64_t(lengths.size()), choice.code,
             stream, flag.data());
    const int n = lengths[0], block = choice.code.quantization.block;
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, turn %d", order, n, turn);
    EXPECT(ours.SameScales(theirs), "%s, n = %d, block %d, turn %d", order, n, block, turn);
    EXPECT(SameBytes(ours.words, theirs.words, theirs.words_size), "%s, n = %d, block %d, turn %d",
           order, n, block, turn);
    if (choice.keep) {
      EXPECT(choice.in_place ? ours.xs.Equals(theirs.xs)
                             : ours.residual_out.Equals(theirs.residual_out),
             "%s, n = %d, block %d, turn %d", order, n, block, turn);
    }
  });
}

// Any words and scales.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const ListCode code = Chosen(turn).code;
  const int64_t workers = 1 + turn % 4;
  const DeviceList theirs(lengths), ours(lengths);
  std::vector<Decoded> expected, list;
  int64_t words_size = 0, scales_size = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    expected.push_back({lengths[i], words_size, scales_size, theirs[i]});
    list.push_back({lengths[i], words_size, scales_size, ours[i]});
    words_size += code.WordsOf(lengths[i]);
    scales_size += code.ScalesOf(lengths[i]);
  }
  const Guarded<uint32_t> words(workers * words_size, 1);
  std::mt19937 random(turn);
  for (int64_t i = 0; i < workers * words_size; ++i) words.data()[i] = random();
  const Guarded<float> scales(Values(kind, workers * scales_size, 3), 1);
  const Rows rows{words.data(), scales.data(), workers, words_size, scales_size};
  const float factor = turn % 3 ? 0.25f : turn % 2 ? 1.0f : 3e-20f;
  const bool finite = DequantizeList(Serial(), rows, expected, code.quantization, factor);
  OnOneOrder(turn / 2, [&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_dequantize_list, rows, list.data(), int64_t(list.size()), code.quantization,
             factor, flag.data());
    const int n = lengths[0], block = code.quantization.block;
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, turn %d", order, n, turn);
    EXPECT(ours.Equals(theirs), "%s, n = %d, block %d, turn %d", order, n, block, turn);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    const bool few = !kFewCases || lengths[0] < 5001 || kind == Kind::kAnyBits;
    if (few && (!kFewCases || lengths[0] < 60000)) CheckEncode(lengths, kind, turn);
    if (few) CheckDecode(lengths, kind, turn);
  };
  OnEveryCorner(check);
  // The corners above combine the largest lengths with some of the widths only.
  for (int i = 0; i < (kFewCases ? 0 : 30); ++i) {
    check({(1 << 20) + (i % 2 ? 1 : -1)}, Kind::kGradient);
  }
  // All blocks, widths and norms with lengths beyond a piece.
  for (int i = 0; i < 30; ++i) check({4099 + 15 * i, 0, 40}, Kind::kGradient);
  return Finish("cuda_quantize_test");
}
