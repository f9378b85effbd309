// What operations on the matrices of a list share.
#pragma once

#include <vector>

#include "kernels/low_rank/low_rank.h"
#include "ops/glue/op.h"

namespace grace {

// The sizes of all matrices of a list.
class Matrices {
 public:
  static constexpr char kAttributes[] = "rows: list(int); columns: list(int); ranks: list(int)";

  explicit Matrices(const Attributes& attributes) {
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
  // The elements of all P, of all Q and of the dense tensors.
  int64_t p() const { return p_; }
  int64_t q() const { return q_; }
  int64_t dense() const { return dense_; }

  // place(i, size) for matrix number i of those with factors, and null for a dense tensor: `count`
  // inputs or outputs.
  template <class T, class PlaceOf>
  std::vector<T*> Factors(int count, const PlaceOf& place) const {
    std::vector<T*> places;
    int i = 0;
    for (const MatrixSize& size : sizes_) {
      Require(!size.rank || i < count, "Every matrix needs its factors.");
      places.push_back(size.rank ? place(i++, size) : nullptr);
    }
    Require(i == count, "There are more factors than matrices.");
    return places;
  }

  // Requires the tensors of a list to have these sizes.
  template <class List>
  void RequireSizes(const List& list) const {
    Require(list.size() == sizes_.size(), "Every tensor needs its size.");
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Require(list[i].n == sizes_[i].rows * sizes_[i].columns, "A tensor does not fit its size.");
    }
  }

 private:
  std::vector<MatrixSize> sizes_;
  int64_t p_ = 0, q_ = 0, dense_ = 0;
};

// Gradients that are matrices.
struct MatrixEncoder : Encoder {
  explicit MatrixEncoder(const Attributes& attributes, const char* count = "M")
      : Encoder(attributes, count), matrices(attributes) {}

  std::vector<EncodeInput> Sources(const Call& call, int residuals_out) const {
    std::vector<EncodeInput> sources = Encoder::Sources(call, residuals_out, Elements::kAny);
    matrices.RequireSizes(sources);
    return sources;
  }

  Matrices matrices;
};

// What is made of matrices alone, or of their factors.
struct MatrixOp {
  explicit MatrixOp(const Attributes& attributes) : matrices(attributes) {}

  Matrices matrices;
};

// Tensors that are made of their factors.
struct MatrixDecoder : Decoder {
  static constexpr char kAttributes[] =
      "N: int >= 1; factor: float; rows: list(int); columns: list(int); ranks: list(int); "
      "shape_ranks: list(int); dims: list(int)";

  explicit MatrixDecoder(const Attributes& attributes)
      : Decoder(attributes, "shape_ranks"),
        matrices(attributes),
        factor(attributes.Float("factor")) {}

  std::vector<DecodeOutput> Targets(const Call& call) const {
    std::vector<DecodeOutput> targets = Decoder::Targets(call);
    matrices.RequireSizes(targets);
    return targets;
  }

  Matrices matrices;
  float factor;
};

}  // namespace grace
