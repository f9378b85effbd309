#include "kernels/base/signed_sums.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/words.h"

namespace grace {
namespace {

constexpr int64_t kPiece = 4096;  // sums, which stay in the first-level cache

// Tensors end to end.
class Joined {
 public:
  explicit Joined(const std::vector<Floats>& xs) : xs_(xs), begins_{0} {
    for (const Floats& x : xs) begins_.push_back(begins_.back() + x.size);
  }
  int64_t total() const { return begins_.back(); }
  // Calls visit(i, x) with each element from `first` to before `last`.
  template <class Visit>
  void For(int64_t first, int64_t last, const Visit& visit) const {
    for (int64_t i = first; i < last;) {
      const size_t t = std::upper_bound(begins_.begin(), begins_.end(), i) - begins_.begin() - 1;
      const int64_t stop = std::min(last, begins_[t + 1]);
      for (const float* x = xs_[t].data + (i - begins_[t]); i < stop; ++i, ++x) visit(i, *x);
    }
  }

 private:
  const std::vector<Floats>& xs_;
  std::vector<int64_t> begins_;
};

// The sum of what `squares` returns for each piece, in their order.
template <class Squares>
double OverPieces(const Executor& executor, int64_t count, const Squares& squares) {
  std::vector<double> found(CeilDiv(count, kPiece));
  executor.For(count, kPiece,
               [&](int64_t begin, int64_t end) { found[begin / kPiece] = squares(begin, end); });
  return std::accumulate(found.begin(), found.end(), 0.0);
}

}  // namespace

double SignedSums(const Executor& executor, const std::vector<Floats>& xs, const PhiloxKey& key,
                  int64_t count, float* sums) {
  const Joined joined(xs);
  std::vector<uint32_t> words(CeilDiv(joined.total(), kGroup));
  RandomWords(executor, key, words.size(), words.data());
  return OverPieces(executor, count, [&](int64_t begin, int64_t end) {
    std::fill(sums + begin, sums + end, 0.0f);
    double square = 0;
    for (int64_t row = 0; row + begin < joined.total(); row += count) {
      joined.For(row + begin, std::min(row + end, joined.total()), [&](int64_t i, float x) {
        const uint32_t minus = words[i / kGroup] << (i % kGroup) & 0x80000000u;
        sums[i - row] += FloatOf(BitsOf(x) ^ minus);
        square += static_cast<double>(x) * x;
      });
    }
    return square;
  });
}

double EndToEnd(const Executor& executor, const std::vector<Floats>& xs, float* out) {
  const Joined joined(xs);
  return OverPieces(executor, joined.total(), [&](int64_t begin, int64_t end) {
    double square = 0;
    joined.For(begin, end, [&](int64_t i, float x) {
      out[i] = x;
      square += static_cast<double>(x) * x;
    });
    return square;
  });
}

}  // namespace grace
