#include "kernels/base/device/launch.h"
#include "kernels/sparse/device/faults.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {
namespace {

// The elements of a dense tensor that a block adds up in its shared memory.
constexpr int64_t kDense = 2 * kChunk;

struct ScatterItem {
  float* total;
  int64_t n, first;
  int64_t at;  // where the tensor's entries are in a worker's row
  int32_t k;   // how many they are
  int32_t unused;
};

// The rows of all workers, as Entries has them.
struct EntryRows {
  const float* values;
  const int32_t* indices;
  const int32_t* counts;
  int64_t workers, size;  // of a row

  __device__ int32_t Used(int64_t worker, int32_t tensor, int32_t tensors, int32_t k) const {
    if (!counts) return k;
    const int32_t count = counts[worker * tensors + tensor];
    return count < 0 ? 0 : count < k ? count : k;
  }
};

// The place of the first of `count` indices that is at least `least`, if they ascend. Whatever they
// are, it is not lower for a higher `least`.
__device__ int32_t LowerBound(const int32_t* indices, int32_t count, int64_t least) {
  int32_t low = 0, high = count;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (indices[middle] < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block adds up a piece of a total, one worker after another; within a worker each element has
// one entry at most. The pieces of a tensor share out all its entries whatever the indices are, so
// that every index is checked by the block that reads it.
__global__ void __launch_bounds__(kThreads)
    ScatterPieces(Table<ScatterItem> table, EntryRows rows, float factor, bool* finite,
                  FirstFault* fault) {
  __shared__ float sums[kDense];
  __shared__ int32_t bounds[kThreads];  // the first entry and the end, for some workers
  const int32_t tensor = table.Find(blockIdx.x);
  const ScatterItem own = table.items[tensor];
  const int64_t begin = (blockIdx.x - own.first) * kDense;
  const int64_t end = begin + kDense < own.n ? begin + kDense : own.n;
  for (int32_t i = threadIdx.x; i < kDense; i += kThreads) sums[i] = 0.0f;
  for (int64_t from = 0; from < rows.workers; from += kThreads / 2) {
    const int64_t searched = from + threadIdx.x / 2;
    if (searched < rows.workers) {
      const bool last = threadIdx.x % 2;
      const int32_t* const indices = rows.indices + searched * rows.size + own.at;
      const int32_t used = rows.Used(searched, tensor, table.count, own.k);
      const int64_t edge = last ? end : begin;
      bounds[threadIdx.x] = edge == 0 && !last ? 0
                            : edge == own.n    ? used
                                               : LowerBound(indices, used, edge);
    }
    __syncthreads();
    for (int64_t w = from; w < rows.workers && w < from + kThreads / 2; ++w) {
      const int32_t* const indices = rows.indices + w * rows.size + own.at;
      const float* const values = rows.values + w * rows.size + own.at;
      const uint32_t stop = bounds[2 * (w - from) + 1];
      for (uint32_t j = bounds[2 * (w - from)] + threadIdx.x; j < stop; j += kThreads) {
        const bool inside = CheckIndex(indices, j, own.n, tensor * rows.workers + w, fault);
        const int64_t at = indices[j] - begin;
        if (!inside || at < 0 || at >= kDense) continue;
        sums[at] = PlainFlush(sums[at] + PlainFlush(values[j]));
      }
      __syncthreads();
    }
  }
  __syncthreads();
  bool all = true;
  for (int32_t i = threadIdx.x; begin + i < end; i += kThreads) {
    const float total = MulZ(sums[i], factor);
    own.total[begin + i] = total;
    all &= IsFinite(total);
  }
  if (!all) *finite = false;
}

// A block checks a piece of what a worker sent of a tensor.
__global__ void __launch_bounds__(kThreads)
    CheckPieces(Table<ScatterItem> table, EntryRows rows, FirstFault* fault) {
  const int64_t worker = blockIdx.x / table.pieces, piece = blockIdx.x % table.pieces;
  const int32_t tensor = table.Find(piece);
  const ScatterItem own = table.items[tensor];
  const int64_t begin = (piece - own.first) * kChunk;
  const int64_t used = rows.Used(worker, tensor, table.count, own.k);
  const int64_t end = begin + kChunk < used ? begin + kChunk : used;
  const int32_t* const indices = rows.indices + worker * rows.size + own.at;
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads) {
    CheckIndex(indices, j, own.n, tensor * rows.workers + worker, fault);
  }
}

// A block takes a piece of the entries of a tensor.
__global__ void __launch_bounds__(kThreads) RefinePieces(Table<ScatterItem> table, EntryRows rows,
                                                         const float* decoded, FirstFault* fault) {
  const int32_t tensor = table.Find(blockIdx.x);
  const ScatterItem own = table.items[tensor];
  const int64_t begin = (blockIdx.x - own.first) * kChunk;
  const int64_t end = begin + kChunk < own.k ? begin + kChunk : own.k;
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads) {
    const int64_t at = own.at + j;
    if (!CheckIndex(rows.indices + own.at, j, own.n, tensor, fault)) continue;
    own.total[rows.indices[at]] = SubZ(rows.values[at], PlainFlush(decoded[at]));
  }
}

// What was found wrong; `finite`, unless it is null, becomes false with it.
__global__ void TellFault(Table<ScatterItem> table, EntryRows rows, const FirstFault* fault,
                          int32_t* told, bool* finite) {
  if (fault->Any() && finite) *finite = false;
  told[0] = !fault->Any() ? 0 : fault->Outside() ? 1 : 2;
  told[1] = told[2] = 0;
  if (!fault->Any()) return;
  const int64_t tensor = fault->Row() / rows.workers, worker = fault->Row() % rows.workers;
  told[1] = static_cast<int32_t>(tensor);
  told[2] = rows.indices[worker * rows.size + table.items[tensor].at + fault->Place()];
}

// The table of a list: target(i) is the i-th tensor, pieces(i) how many blocks it is for.
template <class TargetOf, class Pieces>
Table<ScatterItem> SendTargets(Launch& launch, ScatterItem* items, int64_t count, const int64_t* ks,
                               FirstFault* fault, bool* finite, const TargetOf& target,
                               const Pieces& pieces) {
  launch.Zero(reinterpret_cast<uint32_t*>(fault), kFaultWords);
  int64_t at = 0;
  return launch.Send(
      items, count,
      [&](int64_t i, int64_t first) {
        const DecodeOutput own = target(i);
        const ScatterItem item{own.total, own.n, first, at, static_cast<int32_t>(ks[i]), 0};
        at += ks[i];
        return item;
      },
      pieces, finite);
}

int64_t SumOf(const int64_t* ks, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += ks[i];
  return sum;
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_index_fault(const int64_t* lengths, int64_t count,
                                        const int32_t* indices, const int32_t* counts,
                                        int64_t workers, const int64_t* ks, int32_t* fault,
                                        void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  ScatterItem* const items = launch.Take<ScatterItem>(count);
  FirstFault* const first = launch.Take<FirstFault>(1);
  if (launch.OnlyMeasures()) return 0;
  const auto table = SendTargets(
      launch, items, count, ks, first, nullptr,
      [=](int64_t i) { return DecodeOutput{nullptr, lengths[i]}; },
      [=](int64_t i) { return CeilDiv(ks[i], kChunk); });
  const EntryRows rows{nullptr, indices, counts, workers, SumOf(ks, count)};
  launch.Run(CheckPieces, table.pieces * workers, kThreads, table, rows, first);
  launch.Run(TellFault, 1, 1, table, rows, first, fault, static_cast<bool*>(nullptr));
  return launch.error();
}

GRACE_EXPORT int grace_cuda_scatter_list(const DecodeOutput* list, int64_t count,
                                         const float* values, const int32_t* indices,
                                         const int32_t* counts, int64_t workers, const int64_t* ks,
                                         float factor, bool* finite, int32_t* fault,
                                         void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  ScatterItem* const items = launch.Take<ScatterItem>(count);
  FirstFault* const first = launch.Take<FirstFault>(1);
  if (launch.OnlyMeasures()) return 0;
  // An empty tensor has a piece too: entries for it are a fault.
  const auto table = SendTargets(
      launch, items, count, ks, first, finite, [=](int64_t i) { return list[i]; },
      [=](int64_t i) { return std::max<int64_t>(1, CeilDiv(list[i].n, kDense)); });
  const EntryRows rows{values, indices, counts, workers, SumOf(ks, count)};
  launch.Run(ScatterPieces, table.pieces, kThreads, table, rows, factor, finite, first);
  launch.Run(TellFault, 1, 1, table, rows, first, fault, finite);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_refine_list(const DecodeOutput* list, int64_t count,
                                        const int32_t* indices, const float* values,
                                        const float* decoded, const int64_t* ks, int32_t* fault,
                                        void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  ScatterItem* const items = launch.Take<ScatterItem>(count);
  FirstFault* const first = launch.Take<FirstFault>(1);
  if (launch.OnlyMeasures()) return 0;
  const auto table = SendTargets(
      launch, items, count, ks, first, nullptr, [=](int64_t i) { return list[i]; },
      [=](int64_t i) { return CeilDiv(ks[i], kChunk); });
  const EntryRows rows{values, indices, nullptr, 1, SumOf(ks, count)};
  launch.Run(RefinePieces, table.pieces, kThreads, table, rows, decoded, first);
  launch.Run(TellFault, 1, 1, table, rows, first, fault, static_cast<bool*>(nullptr));
  return launch.error();
}
