// The decoders, given random bits for words, scales, indices, counts, values and halves. Nothing
// outside is read or written. The result is what the headers say: an error, or the values that the
// bits stand for, with the flag telling whether they are finite.
#include <cmath>

#include "../kernels/cast.h"
#include "../kernels/quantize_list.h"
#include "../kernels/random_k.h"
#include "../kernels/signs.h"
#include "../kernels/sparse.h"
#include "testing.h"

namespace grace {

template <class T>
Guarded<T> Garbage(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Guarded<T> bits(n, seed % 3);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = random();
    std::memcpy(&bits[i], &word, sizeof(T));
  }
  return bits;
}

// The same bits, where all NaNs are one.
bool Same(float a, float b) { return BitsOf(a) == BitsOf(b) || (a != a && b != b); }

// The zero of its sign where x is denormal.
float SignedFlush(float x) {
  return (BitsOf(x) & kMagnitude) < kSmallestNormal ? FloatOf(BitsOf(x) & kSignBit) : x;
}

bool Finite(const std::vector<std::vector<float>>& totals) {
  for (const auto& total : totals) {
    for (const float x : total) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

// Outputs of a decoder, each after its own guard.
struct Outputs {
  explicit Outputs(const std::vector<int64_t>& lengths) {
    for (const int64_t n : lengths) {
      each.emplace_back(n, n % 5);
      targets.push_back({each.back().data(), n});
    }
  }
  bool Intact() const {
    return std::all_of(each.begin(), each.end(), [](const auto& own) { return own.Intact(); });
  }
  bool Are(const std::vector<std::vector<float>>& wanted) const {
    for (size_t i = 0; i < each.size(); ++i) {
      for (size_t j = 0; j < wanted[i].size(); ++j) {
        if (!Same(each[i].data()[j], wanted[i][j])) return false;
      }
    }
    return Intact();
  }

  std::vector<Guarded<float>> each;
  std::vector<Target> targets;
};

const std::vector<std::vector<int64_t>> kLists = {
    {}, {0, 1}, {31, 32, 33, 0, 5, 513}, {2047, 4097, 1}, {70001, 3}};

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
  // Finite ones, so that the bound can be seen.
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
    // The same for one tensor.
    if (lengths.empty() || quantization.block == 0) return;
    const int64_t n = lengths.back(), row = PackedWords(n, quantization.bits);
    const Guarded<uint32_t> own = Garbage<uint32_t>(workers * row, 3);
    Guarded<float> sum(n), values(n);
    const int64_t blocks = CeilDiv(n, quantization.block);
    const Guarded<float> own_scales = Garbage<float>(workers * blocks, 4);
    DequantizeSum(executor, own.data(), own_scales.data(), workers, n, quantization, sum.data());
    Dequantize(executor, own.data(), own_scales.data(), n, quantization, values.data());
    bool same = sum.Intact() && values.Intact();
    for (int64_t i = 0; i < n; ++i) {
      float total = 0.0f;
      for (int64_t w = 0; w < workers; ++w) {
        total = Flush(total + Decode(own.data() + w * row, own_scales.data() + w * blocks,
                                     quantization, i));
      }
      same &= Same(sum[i], total);
      same &= Same(values[i], Decode(own.data(), own_scales.data(), quantization, i));
    }
    EXPECT(same, "%ld elements, %d bits", long(n), quantization.bits);
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
        std::vector<Voted> list;
        for (int64_t i = 0, at = 0; i < int64_t(lengths.size()); ++i) {
          list.push_back({lengths[i], at, outputs.each[i].data()});
          at += PackedWords(lengths[i], 1);
        }
        VoteSignsList(executor, words.data(), workers, row, list, -0.5f);
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

// Sparse vectors of some workers for some tensors, with random bits in some places.
class Sparse {
 public:
  Sparse(const std::vector<int64_t>& lengths, int64_t workers, uint32_t seed)
      : lengths_(lengths), workers_(workers), random_(seed), values_(0), indices_(0), counts_(0) {
    for (const int64_t n : lengths) ks_.push_back(CeilDiv(n, 4));
    for (const int64_t k : ks_) row_ += k;
    values_ = Garbage<float>(workers * row_, seed);
    indices_ = Guarded<int32_t>(workers * row_, seed % 4);
    counts_ = Garbage<int32_t>(workers * Tensors(), seed + 1);
    for (int64_t w = 0, at = 0; w < workers; ++w) {
      for (int64_t i = 0; i < Tensors(); ++i) {
        for (int64_t j = 0; j < ks_[i]; ++j) {
          const int64_t index = 4 * j + int64_t(random_() % 4);
          indices_[at + j] = int32_t(std::min(index, lengths[i] - ks_[i] + j));
        }
        if (ks_[i] && random_() % 4 == 0) Spoil(indices_.data() + at, ks_[i], lengths[i]);
        // Some counts are sound; random bits are mostly far too large or negative.
        if (random_() % 2) counts_[w * Tensors() + i] = int32_t(random_() % (ks_[i] + 1));
        at += ks_[i];
      }
    }
  }

  void Check(bool counted, float factor) const {
    std::string error;
    std::vector<std::vector<float>> wanted;
    for (int64_t i = 0; i < Tensors(); ++i) wanted.push_back(Wanted(i, counted, factor, &error));
    OnEveryIsa([&](const Executor& executor) {
      Outputs outputs(lengths_);
      const Entries entries{values_.data(), indices_.data(), counted ? counts_.data() : nullptr,
                            workers_, ks_};
      bool finite = false;
      const std::string fault =
          ScatterList(executor, outputs.targets, entries, factor, &finite);
      EXPECT(fault == error && outputs.Intact(), "%s, not %s", fault.c_str(), error.c_str());
      if (error.empty()) {
        EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%ld tensors", long(Tensors()));
      }
    });
  }

  // Of the first worker, as the next stage of this worker's own payload.
  void CheckRefine() const {
    std::string error;
    for (int64_t i = 0, at = 0; i < Tensors(); at += ks_[i++]) {
      if (error.empty()) error = Fault(indices_.data() + at, ks_[i], i);
    }
    OnEveryIsa([&](const Executor& executor) {
      Outputs kept(lengths_);
      const std::string fault = RefineList(executor, kept.targets, indices_.data(), values_.data(),
                                           values_.data(), ks_);
      EXPECT(fault == error && kept.Intact(), "%s, not %s", fault.c_str(), error.c_str());
    });
  }

  // Each tensor alone, with the entries of the first worker.
  void CheckOne() const {
    for (int64_t i = 0, at = 0; i < Tensors(); at += ks_[i++]) {
      const int32_t* own = indices_.data() + at;
      const int64_t n = lengths_[i], k = ks_[i];
      const std::string error = Fault(own, k, i);
      const bool inside = std::all_of(own, own + k, [n](int32_t j) { return j >= 0 && j < n; });
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> out(n), taken(k);
        const Scatter done =
            ScatterSum(executor, values_.data() + at, own, nullptr, 1, k, n, out.data());
        const Scatter due = error.empty() ? Scatter::kDone
                            : inside      ? Scatter::kUnordered
                                          : Scatter::kOutside;
        EXPECT(done == due && out.Intact(), "%ld of %ld", long(k), long(n));
        const Guarded<float> x = Garbage<float>(n, 9);
        EXPECT(Gather(executor, x.data(), n, own, k, taken.data()) == inside && taken.Intact(),
               "%ld of %ld", long(k), long(n));
      });
    }
  }

 private:
  int64_t Tensors() const { return int64_t(lengths_.size()); }

  void Spoil(int32_t* own, int64_t k, int64_t n) {
    const int64_t j = random_() % k;
    switch (random_() % 4) {
      case 0: own[j] = int32_t(random_()); break;
      case 1: own[k - 1] = int32_t(n); break;
      case 2: own[j] = own[0]; break;
      default: std::swap(own[j], own[0]);
    }
  }

  std::string Fault(const int32_t* own, int64_t count, int64_t i) const {
    bool ascending = true;
    for (int64_t j = 0; j < count; ++j) {
      if (own[j] < 0 || own[j] >= lengths_[i]) {
        return "Index " + std::to_string(own[j]) + " is outside tensor " + std::to_string(i) +
               " of the list, which has " + std::to_string(lengths_[i]) + " elements.";
      }
      ascending &= j == 0 || own[j - 1] < own[j];
    }
    return ascending ? ""
                     : "A worker's indices into tensor " + std::to_string(i) +
                           " of the list do not ascend strictly.";
  }

  // The totals of tensor i, or what is wrong with it if nothing was yet.
  std::vector<float> Wanted(int64_t i, bool counted, float factor, std::string* error) const {
    std::vector<float> total(lengths_[i], 0.0f);
    int64_t at = 0;
    for (int64_t j = 0; j < i; ++j) at += ks_[j];
    for (int64_t w = 0; w < workers_ && error->empty(); ++w) {
      const int64_t count = counts_.data()[w * Tensors() + i];
      const int64_t used = counted ? std::clamp<int64_t>(count, 0, ks_[i]) : ks_[i];
      const int32_t* own = indices_.data() + w * row_ + at;
      *error = Fault(own, used, i);
      for (int64_t j = 0; error->empty() && j < used; ++j) {
        float& sum = total[own[j]];
        sum = Flush(sum + Flush(values_.data()[w * row_ + at + j]));
      }
    }
    for (float& x : total) x = SignedFlush(x * factor);
    return total;
  }

  const std::vector<int64_t> lengths_;
  const int64_t workers_;
  std::mt19937 random_;
  std::vector<int64_t> ks_;
  int64_t row_ = 0;
  Guarded<float> values_;
  Guarded<int32_t> indices_, counts_;
};

void TestSparse() {
  for (const auto& lengths : kLists) {
    for (uint32_t seed = 0; seed < 12; ++seed) {
      const Sparse sparse(lengths, seed % 4, seed);
      sparse.Check(false, 0.3f);
      sparse.Check(true, 0.3f);
      if (seed % 4) sparse.CheckRefine();
      if (seed % 4 == 1) sparse.CheckOne();
    }
  }
}

// Indices that are nothing but random bits.
void TestAnyIndices() {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Guarded<int32_t> indices = Garbage<int32_t>(30, seed), counts = Garbage<int32_t>(6, seed);
    const Guarded<float> values = Garbage<float>(30, seed);
    OnEveryIsa([&](const Executor& executor) {
      Outputs outputs({100, 0, 7});
      const Entries all{values.data(), indices.data(), nullptr, 2, {10, 0, 5}};
      bool finite;
      EXPECT(!ScatterList(executor, outputs.targets, all, 1.0f, &finite).empty(), "%d", int(seed));
      const Entries some{values.data(), indices.data(), counts.data(), 2, {10, 0, 5}};
      ScatterList(executor, outputs.targets, some, 1.0f, &finite);
      EXPECT(outputs.Intact(), "%d", int(seed));
    });
  }
}

}  // namespace grace

int main() {
  grace::TestCodes();
  grace::TestSigns();
  grace::TestHalves();
  grace::TestSparse();
  grace::TestAnyIndices();
  return grace::Finish("garbage");
}
