#include "low_rank.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace grace {

// Some rows and columns of x * multiplier + residual.
struct Strip {
  const float* x;
  const float* residual;  // null: nothing is added
  int64_t stride;         // from one row to the next
  int64_t rows, columns;
  float multiplier;
};

// The columns of a factor. Zeros fill each column up to `padded` elements, a multiple of 16.
struct Factor {
  float* data;
  int64_t padded, rank;
};

}  // namespace grace

#define GRACE_KERNEL "each/low_rank.h"
#include "each_isa.h"

namespace grace {
namespace {

constexpr int64_t kWidth = 16;
// Elements of M that a thread holds in its cache from reading them until what is kept is written.
constexpr int64_t kKept = 256 << 10;

int64_t Padded(int64_t columns) { return CeilDiv(columns, kWidth) * kWidth; }

// Where the parts of a list's tensors begin in P, in Q and among the dense.
struct Places {
  explicit Places(const std::vector<MatrixSize>& sizes) {
    for (const MatrixSize& size : sizes) {
      p.push_back(p_size);
      q.push_back(q_size);
      dense.push_back(dense_size);
      p_size += size.rows * size.rank;
      q_size += size.columns * size.rank;
      if (size.rank == 0) dense_size += size.rows;
    }
  }

  std::vector<int64_t> p, q, dense;
  int64_t p_size = 0, q_size = 0, dense_size = 0;
};

// The Q of a list by columns.
class Columns {
 public:
  Columns(const Executor& executor, const std::vector<MatrixSize>& sizes,
          const std::vector<const float*>& qs) {
    int64_t total = 0;
    std::vector<int64_t> starts;
    for (const MatrixSize& size : sizes) {
      starts.push_back(total);
      total += size.rank * Padded(size.columns);
    }
    data_.resize(total);
    for (size_t i = 0; i < sizes.size(); ++i) {
      factors_.push_back({data_.data() + starts[i], Padded(sizes[i].columns), sizes[i].rank});
    }
    executor.For(sizes.size(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Factor& factor = factors_[i];
        for (int64_t k = 0; k < factor.rank; ++k) {
          float* column = factor.data + k * factor.padded;
          for (int64_t j = 0; j < sizes[i].columns; ++j) column[j] = qs[i][j * factor.rank + k];
        }
      }
    });
  }

  const Factor& operator[](size_t i) const { return factors_[i]; }

 private:
  std::vector<float> data_;
  std::vector<Factor> factors_;
};

// Cuts lists between rows, and dense tensors between cache lines.
struct BetweenRows {
  const std::vector<MatrixSize>& sizes;
  int64_t operator()(size_t i, int64_t element) const {
    const int64_t multiple = sizes[i].rank ? sizes[i].columns : kWidth;
    return CeilDiv(element, multiple) * multiple;
  }
};

// Rows [begin, end) / columns of a tensor.
Strip StripOf(const Source& source, const MatrixSize& size, float multiplier, int64_t begin,
              int64_t end) {
  const float* residual = source.residual ? source.residual + begin : nullptr;
  const int64_t rows = (end - begin) / size.columns;
  return {source.x + begin, residual, size.columns, rows, size.columns, multiplier};
}

bool IsFinite(float x) { return (BitsOf(x) & kMagnitude) < kInfinity; }

// Writes x * multiplier + residual, unless `to` is null. Returns whether all of it is finite.
bool Copy(const Source& source, float multiplier, int64_t begin, int64_t end, float* to) {
  const Source only{source.x, source.residual, nullptr, source.n};
  return EncodePiece(only, multiplier, ChooseCompensate(), begin, end, false,
                     [to](int64_t at, int64_t count, const float* acc, float*) {
                       if (to) std::memcpy(to + at, acc, count * sizeof *acc);
                     });
}

// One tensor's columns [first, first + columns) in a chunk of rows.
struct Block {
  size_t tensor;
  int64_t first, columns, row, rows;
};

class Reprojector {
 public:
  Reprojector(const std::vector<Source>& sources, float multiplier,
              const std::vector<MatrixSize>& sizes, const float* p, float* q)
      : sources_(sources), multiplier_(multiplier), sizes_(sizes), places_(sizes), p_(p), q_(q) {
    bypass_ = TooLargeToCache(LoopOver(sources).total());
    int64_t partial = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [rows, columns, rank] = sizes[i];
      partials_.push_back(partial);
      if (!rank) continue;
      const int64_t together = std::min(rows, kRowChunk);
      const int64_t width = std::max<int64_t>(1, kKept / together / kWidth) * kWidth;
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
      EndStores(bypass_);
    });
    AddChunks();
    if (!sources_.empty() && sources_[0].kept) KeepRest(executor);
  }

 private:
  bool Tall(size_t i) const { return sizes_[i].rank && sizes_[i].rows > kRowChunk; }

  // Sums the products of a block, and stores what is kept where no other rows are to be added.
  void Add(const Block& block) {
    const Source& source = sources_[block.tensor];
    const auto [rows, columns, rank] = sizes_[block.tensor];
    const bool tall = Tall(block.tensor);
    const int64_t padded = Padded(block.columns), at = block.row * columns + block.first;
    const bool keeps = source.kept && !tall;
    static thread_local std::vector<float> scratch;
    const size_t needed = rank * padded + (keeps ? block.rows * padded : 0);
    if (scratch.size() < needed) scratch.resize(needed);
    std::fill_n(scratch.data(), rank * padded, 0.0f);
    const Factor sums{scratch.data(), padded, rank};
    float* saved = keeps ? scratch.data() + rank * padded : nullptr;
    const float* p = p_ + places_.p[block.tensor] + block.row * rank;
    const float* residual = source.residual ? source.residual + at : nullptr;
    reproject_({source.x + at, residual, columns, block.rows, block.columns, multiplier_}, p, sums,
               saved);
    const int64_t chunk = partials_[block.tensor] + block.row / kRowChunk * columns * rank;
    float* q = (tall ? sums_.data() + chunk : q_ + places_.q[block.tensor]) + block.first * rank;
    for (int64_t j = 0; j < block.columns; ++j) {
      for (int64_t k = 0; k < rank; ++k) q[j * rank + k] = sums.data[k * padded + j];
    }
    if (!keeps) return;
    subtract_({saved, nullptr, padded, block.rows, block.columns, 1.0f}, p, sums, bypass_,
              source.kept + at, columns);
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

  // What tall matrices and dense tensors keep.
  void KeepRest(const Executor& executor) {
    std::vector<Source> rest;
    std::vector<MatrixSize> sizes;
    std::vector<const float*> ps, qs;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i].rank && !Tall(i)) continue;
      rest.push_back(sources_[i]);
      sizes.push_back(sizes_[i]);
      ps.push_back(p_ + places_.p[i]);
      qs.push_back(q_ + places_.q[i]);
    }
    const Columns columns(executor, sizes, qs);
    LoopOver(rest).For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      if (sizes[i].rank) {
        const int64_t row = begin / sizes[i].columns;
        subtract_(StripOf(rest[i], sizes[i], multiplier_, begin, end), ps[i] + row * sizes[i].rank,
                  columns[i], bypass_, rest[i].kept + begin, sizes[i].columns);
        return EndStores(bypass_);
      }
      EncodePiece(rest[i], multiplier_, ChooseCompensate(), begin, end, false,
                  [](int64_t, int64_t count, const float*, float* acc) {
                    for (int64_t j = 0; j < count; ++j) acc[j] -= acc[j];
                  });
    });
  }

  const std::vector<Source>& sources_;
  const float multiplier_;
  const std::vector<MatrixSize>& sizes_;
  const Places places_;
  const float* p_;
  float* q_;
  bool bypass_;
  std::vector<Block> blocks_;
  std::vector<int64_t> partials_;  // where a tall matrix' sums begin
  std::vector<float> sums_;
  decltype(&generic::Reproject) reproject_ = GRACE_CHOOSE(Reproject);
  decltype(&generic::Subtract) subtract_ = GRACE_CHOOSE(Subtract);
};

}  // namespace

bool ProjectList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                 const std::vector<MatrixSize>& sizes, const std::vector<const float*>& qs,
                 float* p, float* dense) {
  const Places places(sizes);
  const Columns columns(executor, sizes, qs);
  const auto project = GRACE_CHOOSE(Project);
  std::atomic<bool> all{true};
  LoopOver(sources).For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    if (sizes[i].rank == 0) {
      if (!Copy(sources[i], multiplier, begin, end, dense + places.dense[i])) all = false;
      return;
    }
    const Strip strip = StripOf(sources[i], sizes[i], multiplier, begin, end);
    float* own = p + places.p[i] + begin / sizes[i].columns * sizes[i].rank;
    project(strip, columns[i], own);
    // An element that is not finite makes its row's products so; but finite ones may overflow.
    bool finite = true;
    for (int64_t row = 0; row < strip.rows; ++row) finite &= IsFinite(own[row * sizes[i].rank]);
    if (!finite && !Copy(sources[i], multiplier, begin, end, nullptr)) all = false;
  });
  return all;
}

void ReprojectList(const Executor& executor, const std::vector<Source>& sources, float multiplier,
                   const std::vector<MatrixSize>& sizes, const float* p, float* q) {
  Reprojector(sources, multiplier, sizes, p, q).Run(executor);
}

bool ExpandList(const Executor& executor, const std::vector<Target>& targets,
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
      const Source source{dense + places.dense[i], nullptr, nullptr, targets[i].n};
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
