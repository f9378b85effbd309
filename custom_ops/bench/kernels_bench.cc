// How fast the kernels are, as a share of a plain read of the same floats in the same run.
//
//     kernels_bench [millions of floats = 25] [threads = 1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "kernels/base/dispatch.h"
#include "kernels/base/finite.h"
#include "kernels/base/philox.h"
#include "kernels/quantize/cast.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_list.h"
#include "kernels/quantize/scales.h"
#include "kernels/select/top_k.h"
#include "kernels/signs/signs.h"
#include "kernels/sparse/gather.h"
#include "tests/lists_of_one.h"
#include "tests/testing.h"

namespace grace {

// The least of several times, in seconds: what the machine does when nothing else disturbs it.
double Seconds(const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  double least = 1e9;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || (i < 30 && Clock::now() - start < std::chrono::milliseconds(600)); ++i) {
    const auto before = Clock::now();
    body();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - before).count());
  }
  return least;
}

class Bench {
 public:
  Bench(int64_t n, int threads)
      : n_(n), executor_(threads), x_(Gradient(n)), out_(n), words_(2 * n) {}

  void Run() {
    const int64_t n = n_;
    // Reading and comparing is as little as one can do with every element.
    read_ = Seconds([&] { AllFinite(executor_, x_.data(), n); });
    Print("read (all finite)", read_);
    Print("memcpy", Seconds([&] {
            executor_.For(n, kGrain, [&](int64_t begin, int64_t end) {
              std::memcpy(&out_[begin], &x_[begin], 4 * (end - begin));
            });
          }));
    for (const char* isa : {"avx512", "avx2", "generic"}) {
      if (SetIsa(isa)) Kernels();
    }
  }

 private:
  void Print(const char* name, double seconds) const {
    std::printf("%-8s %-28s %8.2f ms %7.1f GB/s %5.0f %% of read\n", IsaName(), name, 1e3 * seconds,
                4e-9 * double(n_) / seconds, 100 * read_ / seconds);
  }

  void Kernels() {
    const int64_t n = n_;
    const PhiloxKey key{1, 2, 3, 4};
    const float* x = x_.data();
    Print("all finite", Seconds([&] { AllFinite(executor_, x, n); }));
    Print("pack signs", Seconds([&] { PackSigns(executor_, x, n, words_.data()); }));
    Print("unpack signs", Seconds([&] { VoteSigns(executor_, words_.data(), 1, n, out_.data()); }));
    Print("vote of 4", Seconds([&] { VoteSigns(executor_, words_.data(), 4, n, out_.data()); }));
    Print("random words", Seconds([&] { RandomWords(executor_, key, n, words_.data()); }));
    std::vector<float> scales(4 * CeilDiv(n, 512));
    for (const auto norm : {Norm::kMax, Norm::kL2}) {
      Print(norm == Norm::kMax ? "scales, max of 512" : "scales, l2 of 512",
            Seconds([&] { BlockScales(executor_, x, n, 512, norm, scales.data()); }));
    }
    std::copy_n(scales.begin(), scales.size() / 4, scales.begin() + scales.size() / 4);
    char name[40];
    for (const auto& [levels, bits] : {std::pair{1, 2}, {7, 4}, {127, 8}}) {
      const Quantization quantization{levels, bits, 512};
      for (const PhiloxKey* own : {&key, static_cast<const PhiloxKey*>(nullptr)}) {
        std::snprintf(name, sizeof name, "quantize %d bits%s", bits, own ? "" : ", nearest");
        Print(name, Seconds([&] {
                Quantize(executor_, x, scales.data(), n, quantization, own, words_.data());
              }));
      }
      std::snprintf(name, sizeof name, "dequantize %d bits", bits);
      Print(name, Seconds([&] {
              DequantizeSum(executor_, words_.data(), scales.data(), 1, n, quantization,
                            out_.data());
            }));
      if (bits > 4) continue;
      std::snprintf(name, sizeof name, "sum of 2, %d bits", bits);
      Print(name, Seconds([&] {
              DequantizeSum(executor_, words_.data(), scales.data(), 2, n, quantization,
                            out_.data());
            }));
    }
    Lists(key);
    for (const int64_t k : {n / 100, n / 1000}) {
      std::vector<int32_t> indices(k);
      std::vector<float> values(k);
      std::snprintf(name, sizeof name, "top %s", k == n / 100 ? "1 %" : "0.1 %");
      Print(name, Seconds([&] { TopK(executor_, x, n, k, values.data(), indices.data()); }));
      std::snprintf(name, sizeof name, "scatter %s", k == n / 100 ? "1 %" : "0.1 %");
      Print(name, Seconds([&] {
              ScatterSum(executor_, values.data(), indices.data(), nullptr, 1, k, n, out_.data());
            }));
    }
  }

  // The same elements as tensors of very different lengths.
  void Lists(const PhiloxKey& key) {
    std::vector<Encoded> encoded, keeping;
    std::vector<Decoded> decoded;
    std::vector<float> scales(n_ / 256 + 4096), residual_out(n_);
    const ListCode code{{127, 8, 512}, Norm::kMax};
    int64_t words_at = 0, scales_at = 0;
    for (int64_t at = 0, size = 64, n; at < n_; at += n, size = size * 5 % 2000003) {
      n = std::min(size, n_ - at);
      encoded.push_back(
          {{&x_[at], nullptr, 1.0f}, n, &words_[words_at], &scales[scales_at], nullptr, 256});
      keeping.push_back(encoded.back());
      keeping.back().source.residual = &out_[at];
      keeping.back().residual_out = &residual_out[at];
      decoded.push_back({n, words_at, scales_at, &out_[at]});
      words_at += code.WordsOf(n);
      scales_at += code.ScalesOf(n);
    }
    Print("list, quantize 8 bits", Seconds([&] { QuantizeList(executor_, encoded, code, &key); }));
    Print("list, quantize 8 bits, keep",
          Seconds([&] { QuantizeList(executor_, keeping, code, &key); }));
    Print("list, quantize 8, nearest",
          Seconds([&] { QuantizeList(executor_, encoded, code, nullptr); }));
    std::vector<EncodeInput> sources;
    std::vector<DecodeOutput> targets;
    for (const Encoded& own : keeping) {
      sources.push_back({own.source.x, own.source.residual, own.residual_out, own.n});
    }
    for (const Decoded& own : decoded) targets.push_back({own.total, own.n});
    const Rows rows{words_.data(), scales.data(), 1, words_at, scales_at};
    Print("list, dequantize 8 bits",
          Seconds([&] { DequantizeList(executor_, rows, decoded, code.quantization, 0.5f); }));
    for (const Half type : {Half::kFloat16, Half::kBfloat16}) Casts(type, sources, targets);
  }

  void Casts(Half type, std::vector<EncodeInput> sources,
             const std::vector<DecodeOutput>& targets) {
    auto* halves = reinterpret_cast<uint16_t*>(words_.data());
    const char* of = type == Half::kFloat16 ? "float16" : "bfloat16";
    char name[40];
    std::snprintf(name, sizeof name, "list, cast %s, keep", of);
    Print(name, Seconds([&] { CastList(executor_, sources, 0.5f, type, halves); }));
    for (EncodeInput& source : sources) source.residual = source.residual_out = nullptr;
    std::snprintf(name, sizeof name, "list, cast %s", of);
    Print(name, Seconds([&] { CastList(executor_, sources, 1.0f, type, halves); }));
    std::snprintf(name, sizeof name, "list, uncast %s", of);
    Print(name, Seconds([&] { UncastList(executor_, targets, type, halves, 0.5f); }));
  }

  int64_t n_;
  Threads executor_;
  std::vector<float> x_, out_;
  std::vector<uint32_t> words_;
  double read_ = 0;
};

}  // namespace grace

int main(int argc, char** argv) {
  const int64_t n = int64_t(1e6 * (argc > 1 ? std::atof(argv[1]) : 25));
  grace::Bench(n, argc > 2 ? std::atoi(argv[2]) : 1).Run();
  return 0;
}
