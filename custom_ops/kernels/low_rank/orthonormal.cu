#include "kernels/base/device/launch.h"
#include "kernels/low_rank/device/orthonormal.h"
#include "kernels/low_rank/orthonormal.h"

namespace grace {
namespace {

// There are few blocks, so that each may take many registers.
__global__ void __launch_bounds__(kThreads, 1) OrthonormalBlocks(Table<BasisItem> table) {
  const BasisItem own = table.items[table.Find(blockIdx.x)];
  Orthonormal(own).Run();
}

// w [rows, rank] and its basis; and a factor that is only copied, whose pieces the table counts.
struct RemoveItem {
  const float* w;
  const float* basis;
  float* rest;
  const float* from;
  float* to;
  int64_t rows, rank, copied, first;
};

// The first `most` blocks of each tensor take a column each, as far as it has columns. Blocks after
// all these copy a piece.
__global__ void __launch_bounds__(kThreads)
    RemoveColumns(Table<RemoveItem> table, int64_t most, float* cosines) {
  const int64_t columns = table.count * most;
  if (blockIdx.x < columns) {
    const RemoveItem own = table.items[blockIdx.x / most];
    const int64_t k = blockIdx.x % most;
    if (k >= own.rank) return;
    return RemoveColumn(own.rows, own.rank, k, own.w, own.basis, own.rest,
                        cosines + blockIdx.x * most);
  }
  const RemoveItem own = table.items[table.Find(blockIdx.x - columns)];
  const int64_t begin = (blockIdx.x - columns - own.first) * kChunk;
  for (int j = 0; j < kEach; ++j) {
    const int64_t i = begin + j * kThreads + threadIdx.x;
    if (i < own.copied) own.to[i] = own.from[i];
  }
}

// A Q and its unit columns; `largest` is where it has its columns' largest magnitudes.
struct UnitItem {
  const float* q;
  float* units;
  int64_t n, rank, largest, first;
};

// The largest magnitude in each column, kThreads columns at a time.
__global__ void __launch_bounds__(kThreads)
    LargestPieces(Table<UnitItem> table, uint32_t* largest) {
  __shared__ uint32_t found[kThreads];
  const UnitItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
  for (int64_t k = 0; k < own.rank; k += kThreads) {
    found[threadIdx.x] = 0;
    __syncthreads();
    for (int j = 0; j < kEach; ++j) {
      const int64_t i = begin + j * kThreads + threadIdx.x, column = i % own.rank - k;
      if (i >= own.n || column < 0 || column >= kThreads) continue;
      atomicMax(found + column, MagnitudeOf(own.q[i]));
    }
    __syncthreads();
    if (k + threadIdx.x < own.rank) {
      atomicMax(largest + own.largest + k + threadIdx.x, found[threadIdx.x]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    UnitPieces(Table<UnitItem> table, const uint32_t* largest) {
  const UnitItem own = table.items[table.Find(blockIdx.x)];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
  for (int j = 0; j < kEach; ++j) {
    const int64_t i = begin + j * kThreads + threadIdx.x;
    if (i >= own.n) continue;
    const uint32_t magnitude = largest[own.largest + i % own.rank];
    own.units[i] = Unit(own.q[i], PlainFlush(__uint_as_float(magnitude)));
  }
}

// Sends a table of `each` items a matrix. part(i, p, q) gives the i-th item, but for its first
// piece, where its matrix' parts begin at p and q in what lies end to end.
template <class Item, class Part, class Pieces>
Table<Item> SendParts(Launch& launch, Item* items, const MatrixSize* sizes, int64_t count,
                      int64_t each, const Part& part, const Pieces& pieces) {
  int64_t p = 0, q = 0;
  const auto make = [&](int64_t i, int64_t first) {
    Item own = part(i, p, q);
    own.first = first;
    const auto [rows, columns, rank] = sizes[i / each];
    if (i % each == each - 1) {
      p += rows * rank;
      q += columns * rank;
    }
    return own;
  };
  return launch.Send(items, each * count, make, pieces, nullptr);
}

// Makes the bases of factors. part(i, p, q) gives the i-th item without its room in the workspace.
template <class Part>
int Orthonormals(Launch& launch, const MatrixSize* sizes, int64_t count, int64_t each,
                 const Part& part) {
  const auto room_of = [&](int64_t i) {
    const BasisItem own = part(i, 0, 0);
    return own.rank ? (own.rank + 1) * PowerOfTwo(own.rows) + own.rank : 0;
  };
  int64_t size = 0;
  for (int64_t i = 0; i < each * count; ++i) size += room_of(i);
  BasisItem* const items = launch.Take<BasisItem>(each * count);
  float* room = launch.Take<float>(size);
  if (launch.OnlyMeasures()) return 0;
  const auto with_room = [&](int64_t i, int64_t p, int64_t q) {
    BasisItem own = part(i, p, q);
    own.room = room;
    room += room_of(i);
    return own;
  };
  const auto table = SendParts(launch, items, sizes, count, each, with_room,
                               [&](int64_t i) { return sizes[i / each].rank ? 1 : 0; });
  launch.Run(OrthonormalBlocks, table.pieces, kThreads, table);
  return launch.error();
}

// What is left of columns; part(i, p, q) gives the items.
template <class Part>
int Remove(Launch& launch, const MatrixSize* sizes, int64_t count, const Part& part) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, sizes[i].rank);
  RemoveItem* const items = launch.Take<RemoveItem>(count);
  float* const cosines = launch.Take<float>(count * most * most);
  if (launch.OnlyMeasures()) return 0;
  const auto pieces = [&](int64_t i) { return CeilDiv(part(i, 0, 0).copied, kChunk); };
  const auto table = SendParts(launch, items, sizes, count, 1, part, pieces);
  launch.Run(RemoveColumns, count * most + table.pieces, kThreads, table, most, cosines);
  return launch.error();
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_bases_list(const MatrixSize* sizes, int64_t count,
                                       const float* const* factors, float* left, float* right,
                                       void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  return Orthonormals(launch, sizes, count, 2, [=](int64_t i, int64_t p, int64_t q) {
    const auto [rows, columns, rank] = sizes[i / 2];
    const float* own = factors[i / 2];
    if (!rank) return BasisItem{};
    return i % 2 ? BasisItem{own + rows * rank, right + q, nullptr, columns, rank, 0}
                 : BasisItem{own, left + p, nullptr, rows, rank, 0};
  });
}

GRACE_EXPORT int grace_cuda_orthonormal_list(const MatrixSize* sizes, int64_t count, const float* p,
                                             float* basis, void* workspace, size_t* bytes,
                                             void* stream) {
  Launch launch(workspace, bytes, stream);
  return Orthonormals(launch, sizes, count, 1, [=](int64_t i, int64_t at, int64_t) {
    return BasisItem{p + at, basis + at, nullptr, sizes[i].rows, sizes[i].rank, 0};
  });
}

GRACE_EXPORT int grace_cuda_remove_list(const MatrixSize* sizes, int64_t count, const float* w,
                                        const float* basis, float* rest, void* workspace,
                                        size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  return Remove(launch, sizes, count, [=](int64_t i, int64_t at, int64_t) {
    const auto [rows, columns, rank] = sizes[i];
    return RemoveItem{w + at, basis + at, rest + at, nullptr, nullptr, rows, rank, 0, 0};
  });
}

GRACE_EXPORT int grace_cuda_turn_list(const MatrixSize* sizes, int64_t count, const float* p,
                                      const float* q, const float* left, const float* right,
                                      bool p_first, float* const* factors, void* workspace,
                                      size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  return Remove(launch, sizes, count, [=](int64_t i, int64_t at, int64_t other) {
    const auto [rows, columns, rank] = sizes[i];
    const int64_t n = rows * rank, m = columns * rank;
    if (!rank) return RemoveItem{};
    float* const own_q = factors[i] + n;
    return p_first ? RemoveItem{q + other, right + other, own_q, p + at, factors[i],
                                columns,   rank,          n,     0}
                   : RemoveItem{p + at, left + at, factors[i], q + other, own_q, rows, rank, m, 0};
  });
}

GRACE_EXPORT int grace_cuda_unit_columns_list(const MatrixSize* sizes, int64_t count,
                                              const float* q, float* const* units, void* workspace,
                                              size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  int64_t columns = 0;
  for (int64_t i = 0; i < count; ++i) columns += sizes[i].rank;
  UnitItem* const items = launch.Take<UnitItem>(count);
  uint32_t* const largest = launch.Take<uint32_t>(columns);
  if (launch.OnlyMeasures()) return 0;
  launch.Zero(largest, columns);
  int64_t column = 0;
  const auto part = [&](int64_t i, int64_t, int64_t at) {
    const int64_t first = column, rank = sizes[i].rank;
    column += rank;
    return UnitItem{q + at, units[i], sizes[i].columns * rank, rank, first, 0};
  };
  const auto pieces = [=](int64_t i) { return CeilDiv(sizes[i].columns * sizes[i].rank, kChunk); };
  const auto table = SendParts(launch, items, sizes, count, 1, part, pieces);
  launch.Run(LargestPieces, table.pieces, kThreads, table, largest);
  launch.Run(UnitPieces, table.pieces, kThreads, table, largest);
  return launch.error();
}
