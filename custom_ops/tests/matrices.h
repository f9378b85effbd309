// Lists of matrices for the tests of the CUDA kernels on them.
#pragma once

#include <memory>

#include "device.h"
#include "kernels/low_rank/low_rank.h"

namespace grace {

// EXPECT in the body of OnEveryOrder: where it fails it names the order and the first matrix of a
// MatrixList.
#define EXPECT_OF(list, condition, order)                                                          \
  EXPECT(condition, "%s, %d x %d, %d", order, int(list.sizes[0].rows), int(list.sizes[0].columns), \
         int(list.sizes[0].rank))

// A list of matrices with values for all that it may have.
struct MatrixList {
  MatrixList(std::vector<MatrixSize> all, Kind kind) : sizes(std::move(all)) {
    for (const MatrixSize& size : sizes) {
      lengths.push_back(size.rows * size.columns);
      p_lengths.push_back(size.rows * size.rank);
      q_lengths.push_back(size.columns * size.rank);
      p += p_lengths.back();
      q += q_lengths.back();
      dense += size.rank ? 0 : size.rows;
    }
    xs = std::make_unique<DeviceList>(lengths, kind, 1);
    residuals = std::make_unique<DeviceList>(DeviceList::Residuals(lengths, kind));
    qs = std::make_unique<DeviceList>(q_lengths, kind, 3);
  }

  // The gradients; with residuals, and what is kept of them, where there is any.
  std::vector<EncodeInput> Sources(const DeviceList* residual_out, bool residual = true) const {
    std::vector<EncodeInput> sources;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sources.push_back({(*xs)[i], residual ? (*residuals)[i] : nullptr,
                         residual_out ? (*residual_out)[i] : nullptr, lengths[i]});
    }
    return sources;
  }
  std::vector<const float*> Qs() const {
    std::vector<const float*> all;
    for (size_t i = 0; i < sizes.size(); ++i) {
      all.push_back(sizes[i].rank ? (*qs)[i] : nullptr);
    }
    return all;
  }
  int64_t count() const { return sizes.size(); }

  std::vector<MatrixSize> sizes;
  std::vector<int64_t> lengths, p_lengths, q_lengths;
  std::unique_ptr<DeviceList> xs, residuals, qs;
  int64_t p = 0, q = 0, dense = 0;
};

// Some numbers of a kind, between guards.
inline Guarded<float> Some(Kind kind, int64_t n, uint32_t seed) {
  return Guarded<float>(Values(kind, n, seed), 1);
}

// Calls body(sizes, kind) for single matrices of one to a few hundred rows and columns, for tall
// ones, and for lists with dense tensors; of ranks of 1 to 9, also above the columns' number.
template <class Body>
void OnEveryMatrix(const Body& body) {
  using Sizes = std::vector<MatrixSize>;
  constexpr Kind kKinds[] = {Kind::kGradient, Kind::kGradient, Kind::kSpecial,
                             Kind::kAnyBits,  Kind::kZero,     Kind::kEqual};
  constexpr int64_t kColumns[] = {1, 3, 16, 17, 33, 48, 130};
  int turn = 0;
  const auto next = [&] { return kKinds[turn++ % 6]; };
  for (const int64_t rank : {1, 2, 4, 7, 9}) {
    for (const int64_t rows : {1, 2, 9, 31, 64, 65, 257}) {
      if (rank > rows) continue;
      for (int i = 0; i < 2; ++i) body(Sizes{{rows, kColumns[turn % 7], rank}}, next());
    }
  }
  body(Sizes{{300, 300, 4}}, Kind::kGradient);
  body(Sizes{{12, 700, 3}}, Kind::kGradient);
  body(Sizes{{kRowChunk, 1, 1}}, Kind::kGradient);
  body(Sizes{{kRowChunk + 9, 5, 1}, {33, 1, 0}, {2 * kRowChunk + 3, 2, 2}}, Kind::kGradient);
  const Sizes mixed{{33, 1, 0}, {5, 7, 1},    {40, 48, 4},  {40, 48, 2}, {17, 100, 3},
                    {9, 1, 1},  {7001, 1, 0}, {200, 16, 4}, {70, 40, 6}, {1, 1, 0}};
  for (int i = 0; i < 6; ++i) body(mixed, next());
  body(Sizes{{3, 1, 0}, {2049, 1, 0}}, Kind::kSpecial);
  Sizes many;
  for (int64_t i = 0; i < 290; ++i) {
    if (i % 5) {
      many.push_back({1 + i * i % 7, 1, 0});
    } else {
      many.push_back({4 + i % 6, 1 + i % 11, 1 + i % 4});
    }
  }
  body(many, Kind::kGradient);
}

}  // namespace grace
