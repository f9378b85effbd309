// Shared by the operations on the matrices of a list.
#pragma once

#include <vector>

#include "kernels/low_rank/low_rank.h"
#include "ops/glue/list_call.h"

namespace grace {

// The sizes of all matrices of a list, from the attributes `rows`, `columns` and `ranks`.
class Matrices {
 public:
  explicit Matrices(const ListAttributes& attributes) {
    const std::vector<int64_t> rows = attributes.Lengths("rows");
    const std::vector<int64_t> columns = attributes.Lengths("columns");
    const std::vector<int64_t> ranks = attributes.Lengths("ranks");
    Require(rows.size() == columns.size() && rows.size() == ranks.size(),
            "Every matrix needs its rows, columns and rank.");
    for (size_t i = 0; i < rows.size(); ++i) {
      Require(rows[i] >= 1 && columns[i] >= 1, "A matrix must have elements.");
      Require(ranks[i] || columns[i] == 1, "A tensor without factors has one column.");
      Require(ranks[i] <= rows[i], "A matrix must have as many rows as its factors columns.");
      sizes_.push_back({rows[i], columns[i], ranks[i]});
      p_ += rows[i] * ranks[i];
      q_ += columns[i] * ranks[i];
      if (!ranks[i]) dense_ += rows[i];
    }
  }

  const std::vector<MatrixSize>& sizes() const { return sizes_; }
  int64_t count() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t p() const { return p_; }
  int64_t q() const { return q_; }
  int64_t dense() const { return dense_; }

  void RequireShapes(const DecodedList& list) const {
    const std::vector<DecodeOutput>& targets = list.targets();
    Require(targets.size() == sizes_.size(), "Every tensor needs its size.");
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Require(targets[i].n == sizes_[i].rows * sizes_[i].columns, "A shape does not fit its size.");
    }
  }

  // The gradients of a call, its first inputs, and their residuals, the next inputs, if any.
  std::vector<EncodeInput> Sources(const FloatList& xs, const FloatList& residuals) const {
    Require(xs.views().size() == sizes_.size(), "Every tensor needs its size.");
    std::vector<EncodeInput> sources;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const Floats& x = xs.views()[i];
      Require(x.size == sizes_[i].rows * sizes_[i].columns, "A tensor does not fit its size.");
      EncodeInput source{x.data, nullptr, nullptr, x.size};
      if (!residuals.views().empty()) {
        Require(residuals.views()[i].size == x.size, "A residual must have its tensor's shape.");
        source.residual = residuals.views()[i].data;
      }
      sources.push_back(source);
    }
    return sources;
  }

 private:
  std::vector<MatrixSize> sizes_;
  int64_t p_ = 0, q_ = 0, dense_ = 0;
};

// Shared by the operations on gradients.
struct Encoder {
  explicit Encoder(const ListAttributes& attributes)
      : matrices(attributes),
        tensors(static_cast<int>(attributes.Int("N"))),
        residuals(static_cast<int>(attributes.Int("M"))),
        multiplier(attributes.Float("multiplier")) {
    Require(residuals == 0 || residuals == tensors, "Every tensor needs its residual, or none.");
  }

  Matrices matrices;
  int tensors, residuals;
  float multiplier;
};

}  // namespace grace
