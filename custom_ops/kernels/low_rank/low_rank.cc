#include "kernels/low_rank/low_rank.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/low_rank/low_rank_parts.h"

#define GRACE_KERNEL "kernels/low_rank/low_rank-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// Elements of M that a thread holds in its cache from reading them until the residual is written.
constexpr int64_t kKept = 256 << 10;

bool IsFinite(float x) { return (BitsOf(x) & kMagnitude) < kInfinity; }

// Writes x * multiplier + residual, unless `to` is null. Returns whether all of it is finite.
bool Copy(const EncodeInput& source, float multiplier, int64_t begin, int64_t end, float* to) {
  const EncodeInput only{source.x, source.residual, nullptr, source.n};
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
  Reprojector(const std::vector<EncodeInput>& sources, float multiplier,
              const std::vector<MatrixSize>& sizes, const float* p, float* q, Factors others)
      : sources_(sources), multiplier_(multiplier), sizes_(sizes), places_(sizes), p_(p), q_(q) {
    if (others.p) TakeOthers(others);
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
    if (!sources_.empty() && sources_[0].residual_out) KeepRest(executor);
  }

 private:
  // Puts the other factors before its own in what is taken out of M.
  void TakeOthers(Factors others) {
    other_q_ = others.q;
    joined_.resize(2 * places_.p_size);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int64_t at = places_.p[i];
      Join(others.p + at, p_ + at, sizes_[i].rows, sizes_[i].rank, joined_.data() + 2 * at);
    }
  }

  // The P of what is taken out of tensor i, from a row on.
  const float* Taken(size_t i, int64_t row) const {
    const int64_t at = places_.p[i] + row * sizes_[i].rank;
    return other_q_ ? joined_.data() + 2 * at : p_ + at;
  }

  bool Tall(size_t i) const { return sizes_[i].rank && sizes_[i].rows > kRowChunk; }

  // Sums the products of a block, and stores the residual where no other rows are to be added.
  void Add(const Block& block) {
    const EncodeInput& source = sources_[block.tensor];
    const auto [rows, columns, rank] = sizes_[block.tensor];
    const bool tall = Tall(block.tensor);
    const int64_t padded = Padded(block.columns), at = block.row * columns + block.first;
    const bool keeps = source.residual_out && !tall;
    const int64_t first = other_q_ ? rank : 0;  // the others' columns come first
    static thread_local std::vector<float> scratch;
    const size_t needed = (first + rank) * padded + (keeps ? block.rows * padded : 0);
    if (scratch.size() < needed) scratch.resize(needed);
    std::fill_n(scratch.data(), (first + rank) * padded, 0.0f);
    const Factor all{scratch.data(), padded, first + rank};
    const Factor sums{scratch.data() + first * padded, padded, rank};
    float* saved = keeps ? sums.data + rank * padded : nullptr;
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
    const float* other = other_q_ + places_.q[block.tensor] + block.first * rank;
    for (int64_t j = 0; j < (first ? block.columns : 0); ++j) {
      for (int64_t k = 0; k < rank; ++k) all.data[k * padded + j] = other[j * rank + k];
    }
    subtract_({saved, nullptr, padded, block.rows, block.columns, 1.0f},
              Taken(block.tensor, block.row), all, bypass_, source.residual_out + at, columns);
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
    std::vector<EncodeInput> rest;
    std::vector<MatrixSize> sizes;
    std::vector<const float*> ps, qs;
    std::vector<std::vector<float>> joined;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i].rank && !Tall(i)) continue;
      rest.push_back(sources_[i]);
      sizes.push_back(sizes_[i]);
      ps.push_back(Taken(i, 0));
      qs.push_back(q_ + places_.q[i]);
      if (!other_q_) continue;
      sizes.back().rank *= 2;
      joined.emplace_back(sizes.back().rank * sizes_[i].columns);
      Join(other_q_ + places_.q[i], qs.back(), sizes_[i].columns, sizes_[i].rank,
           joined.back().data());
      qs.back() = joined.back().data();
    }
    const Columns columns(executor, sizes, qs);
    LoopOver(rest).For(executor, BetweenRows{sizes}, [&](size_t i, int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      if (sizes[i].rank) {
        const int64_t row = begin / sizes[i].columns;
        subtract_(StripOf(rest[i], sizes[i], multiplier_, begin, end), ps[i] + row * sizes[i].rank,
                  columns[i], bypass_, rest[i].residual_out + begin, sizes[i].columns);
        return EndStores(bypass_);
      }
      EncodePiece(rest[i], multiplier_, ChooseCompensate(), begin, end, false,
                  [](int64_t, int64_t count, const float*, float* acc) {
                    for (int64_t j = 0; j < count; ++j) acc[j] -= acc[j];
                  });
    });
  }

  const std::vector<EncodeInput>& sources_;
  const float multiplier_;
  const std::vector<MatrixSize>& sizes_;
  const Places places_;
  const float* p_;
  float* q_;
  const float* other_q_ = nullptr;
  std::vector<float> joined_;  // the others' P and its own side by side
  bool bypass_;
  std::vector<Block> blocks_;
  std::vector<int64_t> partials_;  // where a tall matrix' sums begin
  std::vector<float> sums_;
  decltype(&generic::Reproject) reproject_ = GRACE_CHOOSE(Reproject);
  decltype(&generic::Subtract) subtract_ = GRACE_CHOOSE(Subtract);
};

}  // namespace

bool ProjectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                 float multiplier, const std::vector<MatrixSize>& sizes,
                 const std::vector<const float*>& qs, float* p, float* dense) {
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

void ReprojectList(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const std::vector<MatrixSize>& sizes, const float* p, float* q,
                   Factors others) {
  Reprojector(sources, multiplier, sizes, p, q, others).Run(executor);
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
