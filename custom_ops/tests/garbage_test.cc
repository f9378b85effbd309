// The decoders, given random bits for words, scales and halves. Nothing outside is read or written.
// The result is the values that the bits stand for, with the flag telling whether they are finite.
#include "garbage.h"

#include "kernels/quantize/cast.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/signs/signs.h"

namespace grace {

// What a worker's words and scales stand for: a code above 2 s is 2 s; a scale below 2^-110, and so
// a negative one, is worth nothing.
float Decode(const uint32_t* words, const float* scales, const Quantization& q, int64_t i) {
  int32_t code = 0;
  for (int32_t p = 0; p < q.bits; ++p) {
    code |= int32_t(words[i / 32 * q.bits + p] >> (i % 32) & 1) << p;
  }
  const float scale = scales[i / q.block];
  const float unit = scale < kSmallestScale ? 0.0f : scale / float(q.levels);
  return float(std::min(code, 2 * q.levels) - q.levels) * unit;
}

void CheckCodes(const std::vector<int64_t>& lengths, const Quantization& quantization,
                int64_t workers, float factor, bool tame) {
  const ListCode code{quantization, Norm::kMax};
  int64_t words_size = 0, scales_size = 0;
  for (const int64_t n : lengths) {
    words_size += code.WordsOf(n);
    scales_size += code.ScalesOf(n);
  }
  const Guarded<uint32_t> words = Garbage<uint32_t>(workers * words_size, 1);
  Guarded<float> scales = Garbage<float>(workers * scales_size, 2);
  // Finite scales give finite results, whose size is compared with the stated bound below.
  for (int64_t i = 0; tame && i < workers * scales_size; ++i) {
    scales[i] = FloatOf(BitsOf(scales[i]) & 0x9fffffff);
  }
  std::vector<std::vector<float>> wanted, sums, firsts;
  for (int64_t i = 0, words_at = 0, scales_at = 0; i < int64_t(lengths.size()); ++i) {
    Quantization own = quantization;
    own.block = code.BlockOf(lengths[i]);
    wanted.emplace_back();
    bool bounded = true;
    for (int64_t j = 0; j < lengths[i]; ++j) {
      float sum = 0.0f, bound = 0.0f;
      for (int64_t w = 0; w < workers; ++w) {
        const float* row = scales.data() + w * scales_size + scales_at;
        sum = Flush(sum + Decode(words.data() + w * words_size + words_at, row, own, j));
        bound += std::max(row[j / own.block], 0.0f);
      }
      wanted.back().push_back(SignedFlush(sum * factor));
      bounded &= !tame || std::fabs(sum) <= bound * 1.00001f;
    }
    EXPECT(bounded, "a sum is beyond the scales");
    words_at += code.WordsOf(lengths[i]);
    scales_at += code.ScalesOf(lengths[i]);
  }
  OnEveryIsa([&](const Executor& executor) {
    Outputs outputs(lengths);
    std::vector<Decoded> list;
    for (size_t i = 0, words_at = 0, scales_at = 0; i < lengths.size(); ++i) {
      list.push_back({lengths[i], int64_t(words_at), int64_t(scales_at), outputs.each[i].data()});
      words_at += code.WordsOf(lengths[i]);
      scales_at += code.ScalesOf(lengths[i]);
    }
    const Rows rows{words.data(), scales.data(), workers, words_size, scales_size};
    const bool finite = DequantizeList(executor, rows, list, quantization, factor);
    EXPECT(outputs.Are(wanted) && finite == Finite(wanted),
           "%d tensors, %d bits, block %ld, %ld workers", int(lengths.size()), quantization.bits,
           long(quantization.block), long(workers));
  });
}

void TestCodes() {
  for (const auto& lengths : kLists) {
    const bool few = !lengths.empty() && lengths[0] > 5000;
    for (const auto& [levels, bits] : {std::pair{1, 2}, {6, 4}, {127, 8}, {300, 10}, {32767, 16}}) {
      for (const int64_t block : {0, 1, 100, 512}) {
        if (few && block == 1) continue;
        CheckCodes(lengths, {levels, bits, block}, 1 + bits % 3, 0.3f, block == 100);
      }
      for (const float factor : {0.3f, 0.0f, -2.0f, 1e30f, INFINITY, NAN}) {
        CheckCodes(lengths, {levels, bits, 100}, 1, factor, false);
      }
    }
  }
}

void TestSigns() {
  for (const auto& lengths : kLists) {
    int64_t row = 0;
    for (const int64_t n : lengths) row += PackedWords(n, 1);
    for (const int64_t workers : {1, 2, 3, 40}) {
      const Guarded<uint32_t> words = Garbage<uint32_t>(workers * row, 5);
      std::vector<std::vector<float>> wanted;
      for (int64_t i = 0, at = 0; i < int64_t(lengths.size()); ++i) {
        wanted.emplace_back();
        for (int64_t j = 0; j < lengths[i]; ++j) {
          int64_t sum = 0;
          for (int64_t w = 0; w < workers; ++w) {
            sum += words.data()[w * row + at + j / 32] >> (j % 32) & 1 ? 1 : -1;
          }
          wanted.back().push_back(float((sum > 0) - (sum < 0)) * -0.5f);
        }
        at += PackedWords(lengths[i], 1);
      }
      OnEveryIsa([&](const Executor& executor) {
        Outputs outputs(lengths);
        VoteSignsList(executor, words.data(), workers, outputs.targets, -0.5f);
        EXPECT(outputs.Are(wanted), "%d tensors, %ld workers", int(lengths.size()), long(workers));
      });
    }
  }
}

float FromBits(Half type, uint16_t half) {
  if (type == Half::kBfloat16) return FloatOf(uint32_t(half) << 16);
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = std::ldexp(float(fraction + (exponent ? 1024 : 0)), std::max(exponent, 1) - 25);
  if (exponent == 31) value = fraction ? NAN : INFINITY;
  return half & 0x8000 ? -value : value;
}

void TestHalves() {
  for (const auto& lengths : kLists) {
    int64_t total = 0;
    for (const int64_t n : lengths) total += n;
    for (const Half type : {Half::kFloat16, Half::kBfloat16}) {
      for (const bool tame : {false, true}) {
        Guarded<uint16_t> halves = Garbage<uint16_t>(total, 6);
        for (int64_t i = 0; tame && i < total; ++i) halves[i] &= 0xbbff;
        std::vector<std::vector<float>> wanted;
        for (int64_t i = 0, at = 0; i < int64_t(lengths.size()); ++i) {
          wanted.emplace_back();
          for (int64_t j = 0; j < lengths[i]; ++j, ++at) {
            wanted.back().push_back(SignedFlush(SignedFlush(FromBits(type, halves[at])) * 0.3f));
          }
        }
        OnEveryIsa([&](const Executor& executor) {
          Outputs outputs(lengths);
          const bool finite = UncastList(executor, outputs.targets, type, halves.data(), 0.3f);
          EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%d tensors, type %d, tame %d",
                 int(lengths.size()), int(type), tame);
        });
      }
    }
  }
}

}  // namespace grace

int main() {
  grace::TestCodes();
  grace::TestSigns();
  grace::TestHalves();
  return grace::Finish("garbage");
}
