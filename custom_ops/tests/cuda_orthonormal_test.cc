#include <algorithm>

#include "device.h"
#include "kernels/low_rank/orthonormal.h"
#include "matrices.h"

namespace grace {

void CheckOrthonormal(const MatrixList& list, const Guarded<float>& p) {
  const Guarded<float> theirs(list.p), ours(list.p);
  OrthonormalList(Serial(), list.sizes, p.data(), theirs.data());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_orthonormal_list, list.sizes.data(), list.count(), p.data(), ours.data());
    EXPECT_OF(list, SameFloats(ours, theirs, list.p), order);
  });
}

void CheckRemove(const MatrixList& list, const Guarded<float>& w, const Guarded<float>& basis) {
  const Guarded<float> theirs(list.p), ours(list.p);
  RemoveList(Serial(), list.sizes, w.data(), basis.data(), theirs.data());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_remove_list, list.sizes.data(), list.count(), w.data(), basis.data(),
             ours.data());
    EXPECT_OF(list, SameFloats(ours, theirs, list.p), order);
  });
}

// For each matrix, the elements of its P and its Q together; 0 for a dense tensor.
std::vector<int64_t> BothLengths(const MatrixList& list) {
  std::vector<int64_t> lengths;
  for (const MatrixSize& size : list.sizes) {
    lengths.push_back((size.rows + size.columns) * size.rank);
  }
  return lengths;
}
template <class T>
std::vector<T*> Pointers(const MatrixList& list, const DeviceList& tensors) {
  std::vector<T*> pointers;
  for (size_t i = 0; i < list.sizes.size(); ++i) {
    pointers.push_back(list.sizes[i].rank ? tensors[i] : nullptr);
  }
  return pointers;
}

void CheckBases(const MatrixList& list, Kind kind) {
  const DeviceList factors(BothLengths(list), kind, 4);
  const std::vector<const float*> given = Pointers<const float>(list, factors);
  const Guarded<float> their_left(list.p), their_right(list.q), left(list.p), right(list.q);
  BasesList(Serial(), list.sizes, given, their_left.data(), their_right.data());
  OnEveryOrder([&](const char* order) {
    left.Spoil();
    right.Spoil();
    Launched(grace_cuda_bases_list, list.sizes.data(), list.count(), given.data(), left.data(),
             right.data());
    EXPECT_OF(list, SameFloats(left, their_left, list.p), order);
    EXPECT_OF(list, SameFloats(right, their_right, list.q), order);
  });
}

void CheckTurn(const MatrixList& list, Kind kind, bool p_first) {
  const Guarded<float> p = Some(kind, list.p, 5), q = Some(kind, list.q, 6);
  const Guarded<float> left = Some(kind, list.p, 7), right = Some(kind, list.q, 8);
  const DeviceList theirs(BothLengths(list)), ours(BothLengths(list));
  const std::vector<float*> factors = Pointers<float>(list, ours);
  TurnList(Serial(), list.sizes, p.data(), q.data(), left.data(), right.data(), p_first,
           Pointers<float>(list, theirs));
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_turn_list, list.sizes.data(), list.count(), p.data(), q.data(), left.data(),
             right.data(), p_first, factors.data());
    EXPECT_OF(list, ours.Equals(theirs), order);
  });
}

void CheckUnit(const MatrixList& list, const Guarded<float>& q) {
  const DeviceList theirs(list.q_lengths), ours(list.q_lengths);
  const std::vector<float*> units = Pointers<float>(list, ours);
  UnitColumnsList(Serial(), list.sizes, q.data(), Pointers<float>(list, theirs));
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_unit_columns_list, list.sizes.data(), list.count(), q.data(), units.data());
    EXPECT_OF(list, ours.Equals(theirs), order);
  });
}

// Columns that depend on each other, with zeros; and quotients beside the least normal number.
void CheckCorners() {
  const MatrixList list({{64, 5, 6}, {9, 4, 9}, {300, 2, 3}}, Kind::kZero);
  std::vector<float> p = Gradient(list.p);
  for (int64_t i = 0; i < 64; ++i) {
    p[i * 6 + 1] = 3.0f * p[i * 6];
    p[i * 6 + 3] = 0.0f;
    p[i * 6 + 4] = p[i * 6] + p[i * 6 + 2];
  }
  for (int64_t i = 0; i < 81; ++i) p[384 + i] = i % 9 < 7 ? -1.0f : 0x1p-130f;
  CheckOrthonormal(list, Guarded<float>(p));
  std::vector<float> tiny(list.p), tiny_q(list.q);
  std::mt19937 random(3);
  const auto draw = [&](float& x) { x = FloatOf(0x00ffffc0u + random() % 128); };
  std::for_each(tiny.begin(), tiny.end(), draw);
  std::for_each(tiny_q.begin(), tiny_q.end(), draw);
  for (int64_t k = 0; k < 6; ++k) tiny_q[k] = tiny[k] = k % 2 ? -2.0f : 1.99f;
  CheckOrthonormal(list, Guarded<float>(tiny));
  CheckUnit(list, Guarded<float>(tiny_q));
}

void CheckTall() {
  const MatrixList list({{20000, 3, 2}, {1, 1, 0}, {2048, 300, 260}}, Kind::kGradient);
  CheckUnit(list, Some(Kind::kGradient, list.q, 9));
  const MatrixList tall({{20000, 3, 3}, {7, 1, 0}, {2049, 3, 5}, {32768, 1, 1}}, Kind::kGradient);
  CheckOrthonormal(tall, Some(Kind::kGradient, tall.p, 9));
  CheckRemove(tall, Some(Kind::kGradient, tall.p, 10), Some(Kind::kGradient, tall.p, 11));
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryMatrix([&](const std::vector<MatrixSize>& sizes, Kind kind) {
    ++turn;
    const MatrixList list(sizes, kind);
    // Each matrix has one of these checks while they are emulated.
    const auto due = [&](int check) { return !kFewCases || turn % 4 == check; };
    if (due(0)) CheckOrthonormal(list, Some(kind, list.p, 1));
    if (due(1)) CheckBases(list, kind);
    if (due(2)) CheckTurn(list, kind, kFewCases ? turn % 8 == 2 : turn % 2);
    if (due(3)) CheckRemove(list, Some(kind, list.p, 2), Some(kind, list.p, 3));
    if (due(3)) CheckUnit(list, Some(kind, list.q, 9));
  });
  CheckCorners();
  CheckTall();
  return Finish("cuda_orthonormal_test");
}
