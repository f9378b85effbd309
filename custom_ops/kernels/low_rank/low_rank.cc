#include "kernels/low_rank/low_rank.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/low_rank/low_rank_parts.h"

#define GRACE_KERNEL "kernels/low_rank/low_rank-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// Elements of M that a thread adds up at a time. With fewer elements a thread would read a shorter
// piece of each row, which is slower.
constexpr int64_t kBlock = 1 << 20;

bool IsFinite(float x) { return (BitsOf(x) & kMagnitude) < kInfinity; }

// Writes x * multiplier + residual to `residual_out` and to `to`, each unless it is null. Returns
// whether all of it is finite.
bool Copy(const EncodeInput& source, float multiplier, int64_t begin, int64_t end, float* to) {
  return EncodePiece(source, multiplier, ChooseCompensate(), begin, end, false,
                     [to](int64_t at, int64_t count, const float* acc, float* kept) {
                       if (to) std::memcpy(to + at, acc, count * sizeof *acc);
                       if (kept && kept != acc) std::memcpy(kept, acc, count * sizeof *acc);
                     });
}

// One tensor's columns [first, first + columns) in a chunk of rows.
struct Block {
  size_t tensor;
  int64_t first, columns, row, rows;
};

class Reprojector {
 public:
  Reprojector(const std::vector<EncodeInput>& sources, float multiplier,
              const std::vector<MatrixSize>& sizes, const float* p, float* q)
      : sources_(sources), multiplier_(multiplier), sizes_(sizes), places_(sizes), p_(p), q_(q) {
    int64_t partial = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [rows, columns, rank] = sizes[i];
      partials_.push_back(partial);
      if (!rank) continue;
      const int64_t together = std::min(rows, kRowChunk);
      const int64_t width = std::max<int64_t>(1, kBlock / together / kWidth) * kWidth;
      for (int64_t row = 0; row < rows; row += kRowChunk) {
        for (int64_t j = 0; j < columns; j += width) {
          const int64_t last = std::min(row + kRowChunk, rows);
          blocks_.push_back({i, j, std::min(width, columns - j), row, last - row});
        }
        if (rows > kRowChunk) partial += columns * rank;
      }
    }
    sums_.resize(partial);
  }

  void Run(const Executor& executor) {
    executor.For(blocks_.size(), 1, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      for (int64_t i = begin; i < end; ++i) Add(blocks_[i]);
    });
    AddChunks();
  }

 private:
  bool Tall(size_t i) const { return sizes_[i].rank && sizes_[i].rows > kRowChunk; }

  // Sums the products of a block.
  void Add(const Block& block) {
    const EncodeInput& source = sources_[block.tensor];
    const auto [rows, columns, rank] = sizes_[block.tensor];
    const int64_t padded = Padded(block.columns), at = block.row * columns + block.first;
    static thread_local std::vector<float> scratch;
    scratch.assign(rank * padded, 0.0f);
    const Factor sums{scratch.data(), padded, rank};
    const float* p = p_ + places_.p[block.tensor] + block.row * rank;
    const float* residual = source.residual ? source.residual + at : nullptr;
    reproject_({source.x + at, residual, columns, block.rows, block.columns, multiplier_}, p, sums);
    const int64_t chunk = partials_[block.tensor] + block.row / kRowChunk * columns * rank;
    float* q = Tall(block.tensor) ? sums_.data() + chunk : q_ + places_.q[block.tensor];
    q += block.first * rank;
    for (int64_t j = 0; j < block.columns; ++j) {
      for (int64_t k = 0; k < rank; ++k) q[j * rank + k] = sums.data[k * padded + j];
    }
  }

  // Adds up the chunks of tall matrices.
  void AddChunks() {
    const DenormalsAreZero scope;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (!Tall(i)) continue;
      const int64_t n = sizes_[i].columns * sizes_[i].rank;
      float* q = q_ + places_.q[i];
      const float* sums = sums_.data() + partials_[i];
      std::copy_n(sums, n, q);
      for (int64_t chunk = 1; chunk < CeilDiv(sizes_[i].rows, kRowChunk); ++chunk) {
        for (int64_t j = 0; j < n; ++j) q[j] += sums[chunk * n + j];
      }
    }
  }

  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const std::vector<MatrixSize>& sizes_;
  const Places places_;
  const float* p_;
  float* q_;
  std::vector<Block> blocks_;
  std::vector<int64_t> partials_;  // where a tall matrix' sums begin
  std::vector<float> sums_;
  decltype(&generic::Reproject) reproject_ = GRACE_CHOOSE(Reproject);
};

// What is subtracted from the matrices of a list: P Qt of the own factors. If there are other
// factors, their product comes before it, and the two are computed as one product of twice the
// rank.
class Taken {
 public:
  Taken(const std::vector<MatrixSize>& sizes, Factors own, Factors others) : sizes(sizes) {
    const Places places(sizes);
    if (others.p) {
      p_.resize(2 * places.p_size);
      q_.resize(2 * places.q_size);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [rows, columns, rank] = sizes[i];
      const int64_t p = places.p[i], q = places.q[i];
      if (others.p) {
        Join(others.p + p, own.p + p, rows, rank, p_.data() + 2 * p);
        Join(others.q + q, own.q + q, columns, rank, q_.data() + 2 * q);
        this->sizes[i].rank *= 2;
      }
      ps.push_back(others.p ? p_.data() + 2 * p : own.p + p);
      qs.push_back(others.p ? q_.data() + 2 * q : own.q + q);
    }
  }

  std::vector<MatrixSize> sizes;
  std::vector<const float*> ps, qs;

 private:
  std::vector<float> p_, q_;
};

void Subtract(const Executor& executor, const std::vector<EncodeInput>& sources, float multiplier,
              const Taken& taken) {
  const std::vector<MatrixSize>& sizes = taken.sizes;
  const Columns columns(executor, sizes, taken.qs);
  const auto subtract = GRACE_CHOOSE(Subtract);
  const ListLoop loop = LoopOver(sources);
  const bool large = TooLargeToCache(loop.total());
  loop.For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    const EncodeInput& source = sources[i];
    if (sizes[i].rank) {
      // The lines of x have just been read, so storing them past the caches saves nothing.
      const bool bypass = large && source.residual_out != source.x;
      const float* p = taken.ps[i] + begin / sizes[i].columns * sizes[i].rank;
      subtract(StripOf(source, sizes[i], multiplier, begin, end), p, columns[i], bypass,
               source.residual_out + begin);
      return EndStores(bypass);
    }
    EncodePiece(source, multiplier, ChooseCompensate(), begin, end, large,
                [](int64_t, int64_t count, const float* acc, float* kept) {
                  for (int64_t j = 0; j < count; ++j) kept[j] = acc[j] - acc[j];
                });
  });
}

}  // namespace

bool ProjectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                 float multiplier, const std::vector<MatrixSize>& sizes,
                 const std::vector<const float*>& qs, float* p, float* dense) {
  const Places places(sizes);
  const Columns columns(executor, sizes, qs);
  const auto project = GRACE_CHOOSE(Project);
  const ListLoop loop = LoopOver(sources);
  const bool bypass = TooLargeToCache(loop.total());
  std::atomic<bool> all{true};
  loop.For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    if (sizes[i].rank == 0) {
      if (!Copy(sources[i], multiplier, begin, end, dense + places.dense[i])) all = false;
      return;
    }
    const Strip strip = StripOf(sources[i], sizes[i], multiplier, begin, end);
    float* own = p + places.p[i] + begin / sizes[i].columns * sizes[i].rank;
    float* const kept = sources[i].residual_out;
    // For more than four columns of q, Project reads the stored row again. So it has to be in the
    // caches.
    const bool past = bypass && kept && kept != sources[i].x && sizes[i].rank <= 4;
    project(strip, columns[i], own, kept ? kept + begin : nullptr, past);
    EndStores(past);
    // An element that is not finite makes its row's products so; but finite ones may overflow.
    bool finite = true;
    for (int64_t row = 0; row < strip.rows; ++row) finite &= IsFinite(own[row * sizes[i].rank]);
    if (finite) return;
    const EncodeInput& source = sources[i];
    const EncodeInput again = kept ? EncodeInput{kept, nullptr, nullptr, source.n} : source;
    if (!Copy(again, kept ? 1.0f : multiplier, begin, end, nullptr)) all = false;
  });
  return all;
}

void ReprojectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<MatrixSize>& sizes, const float* p, float* q,
                   Factors others) {
  Reprojector(sources, multiplier, sizes, p, q).Run(executor);
  if (sources.empty() || !sources[0].residual_out) return;
  Subtract(executor, sources, multiplier, Taken(sizes, {p, q}, others));
}

bool ExpandList(const Executor& executor, const std::vector<DecodeOutput>& targets,
                const std::vector<MatrixSize>& sizes, const float* p, const float* q,
                const float* dense, float factor) {
  const Places places(sizes);
  std::vector<const float*> qs;
  for (const int64_t place : places.q) qs.push_back(q + place);
  const Columns columns(executor, sizes, qs);
  const ListLoop loop = LoopOver(targets);
  const bool bypass = TooLargeToCache(loop.total());
  const auto expand = GRACE_CHOOSE(Expand);
  std::atomic<bool> all{true};
  loop.For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    if (sizes[i].rank == 0) {
      const EncodeInput source{dense + places.dense[i], nullptr, nullptr, targets[i].n};
      if (!Copy(source, factor, begin, end, targets[i].total)) all = false;
      return;
    }
    const Strip strip = StripOf({}, sizes[i], 1.0f, begin, end);
    const float* own = p + places.p[i] + begin / sizes[i].columns * sizes[i].rank;
    if (!expand(strip, own, columns[i], factor, bypass, targets[i].total + begin)) all = false;
    EndStores(bypass);
  });
  return all;
}

}  // namespace grace
