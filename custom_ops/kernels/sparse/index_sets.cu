#include "kernels/base/device/block.h"
#include "kernels/base/device/last_block.h"
#include "kernels/base/device/launch.h"
#include "kernels/sparse/device/faults.h"
#include "kernels/sparse/index_sets.h"

namespace grace {
namespace {

// The words of a bitmap that a block takes, one a thread.
constexpr int64_t kBlockWords = kThreads;

struct SetItem {
  int64_t n, k;
  int64_t first;           // of what blocks take: entries of a set that is packed, words of others
  int64_t words, entries;  // where its parts begin
  int64_t low_words, upper_bits;
  int32_t low;    // how many low bits an entry has; 0: a plain bitmap
  uint32_t step;  // the bit of entry i is its upper bits + step * i

  static SetItem From(const IndexLayout& layout, int64_t first, int64_t words, int64_t entries) {
    return {layout.n,
            layout.k,
            first,
            words,
            entries,
            layout.low_words,
            layout.upper_bits,
            layout.low,
            layout.plain ? 0u : 1u};
  }
  __device__ int64_t BitmapWords() const { return (upper_bits + kWarp - 1) / kWarp; }
  __device__ int64_t Blocks() const { return (BitmapWords() + kBlockWords - 1) / kBlockWords; }
};

int64_t BlocksOf(const IndexLayout& layout) {
  return CeilDiv(CeilDiv(layout.upper_bits, kGroup), kBlockWords);
}

// The sum of the bits of neighbouring lanes whose `word` is equal, in the first of them.
__device__ uint32_t JoinWords(int32_t word, uint32_t bits) {
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const int32_t other = __shfl_down_sync(kAllLanes, word, lanes);
    const uint32_t others = __shfl_down_sync(kAllLanes, bits, lanes);
    if (Lane() + lanes < kWarp && other == word) bits |= others;
  }
  return bits;
}

// A block writes what kChunk entries say, in a bitmap that is zero. Bits of words that it shares
// with other blocks are added to these.
__global__ void __launch_bounds__(kThreads, 6)
    PackPieces(Table<SetItem> table, const int32_t* indices, const int32_t* counts, uint32_t* words,
               FirstFault* fault) {
  __shared__ uint32_t entries[kChunk];
  const int32_t tensor = table.Find(blockIdx.x);
  const SetItem own = table.items[tensor];
  const int64_t piece = blockIdx.x - own.first, begin = piece * kChunk;
  int64_t used = counts ? counts[tensor] : own.k;
  used = used < 0 ? 0 : used < own.k ? used : own.k;
  indices += own.entries;
  words += own.words;
  uint32_t* const bitmap = words + own.low_words;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int at = j * kThreads + static_cast<int>(threadIdx.x);
    const int64_t i = begin + at;
    const bool sound =
        i < used && CheckIndex(indices, static_cast<int32_t>(i), own.n, tensor, fault);
    const uint32_t index = sound ? static_cast<uint32_t>(indices[i]) : 0;
    entries[at] = index;
    const uint32_t bit = (index >> own.low) + own.step * static_cast<uint32_t>(i);
    const int32_t word = sound ? static_cast<int32_t>(bit / kWarp) : -1;
    const int32_t before = __shfl_up_sync(kAllLanes, word, 1);
    const uint32_t bits = JoinWords(word, 1u << (bit % kWarp));
    if (sound && (Lane() == 0 || before != word)) atomicOr(bitmap + word, bits);
  }
  if (own.low == 0) return;
  __syncthreads();
  // kChunk entries fill whole words.
  const int64_t first = piece * own.low * (kChunk / kWarp);
  const uint32_t mask = (1u << own.low) - 1;
  for (int64_t w = threadIdx.x; w < own.low * (kChunk / kWarp) && first + w < own.low_words;
       w += kThreads) {
    uint32_t word = 0;
    const auto bit = static_cast<int32_t>(w * kWarp);
    for (int32_t e = bit / own.low; e < kChunk && e * own.low < bit + kWarp; ++e) {
      const int32_t shift = e * own.low - bit;
      const uint32_t low = entries[e] & mask;
      word |= shift < 0 ? low >> -shift : low << shift;
    }
    words[first + w] = word;
  }
}

__global__ void ClearFault(FirstFault* fault) { *fault = FirstFault(); }

__global__ void TellFault(Table<SetItem> table, const int32_t* indices, const FirstFault* fault,
                          int32_t* told) {
  told[0] = !fault->Any() ? 0 : fault->Outside() ? 1 : 2;
  told[1] = told[2] = 0;
  if (!fault->Any()) return;
  told[1] = static_cast<int32_t>(fault->Row());
  told[2] = indices[table.items[fault->Row()].entries + fault->Place()];
}

// The sets of several workers, their blocks one after another.
struct SetRows {
  const uint32_t* words;
  int64_t words_size, entries_size;  // of a row

  __device__ uint32_t WordAt(const SetItem& own, int64_t worker, int64_t word) const {
    if (word >= own.BitmapWords()) return 0;
    const int64_t left = own.upper_bits - word * kWarp;
    const uint32_t bits = words[worker * words_size + own.words + own.low_words + word];
    return left >= kWarp ? bits : bits & ((1u << left) - 1);
  }
};

// Counts the bits of a bitmap; its last block finds how many come before each block.
__global__ void __launch_bounds__(kThreads)
    CountBits(Table<SetItem> table, SetRows rows, uint32_t* arrived, int64_t (*before)[1],
              int64_t* totals) {
  const int64_t worker = blockIdx.x / table.pieces, piece = blockIdx.x % table.pieces;
  const int32_t tensor = table.Find(piece);
  const SetItem own = table.items[tensor];
  const int64_t part = worker * table.count + tensor;
  const uint32_t word = rows.WordAt(own, worker, (piece - own.first) * kBlockWords + threadIdx.x);
  const int32_t bits = JoinBlock(__popc(word), Total());
  if (threadIdx.x == 0) before[blockIdx.x][0] = bits;
  if (!ArrivesAsLast(arrived + part, own.Blocks())) return;
  int64_t total;
  SumRowsBefore(before + worker * table.pieces + own.first, own.Blocks(), &total);
  if (threadIdx.x == 0) totals[part] = total;
}

// Writes the entries of a block's words, and its share of those that are missing.
__global__ void __launch_bounds__(kThreads)
    UnpackPieces(Table<SetItem> table, SetRows rows, const int64_t (*before)[1],
                 const int64_t* totals, int32_t* indices) {
  const int64_t worker = blockIdx.x / table.pieces, piece = blockIdx.x % table.pieces;
  const int32_t tensor = table.Find(piece);
  const SetItem own = table.items[tensor];
  const int64_t block = piece - own.first, at = block * kBlockWords + threadIdx.x;
  indices += worker * rows.entries_size + own.entries;
  const uint32_t word = rows.WordAt(own, worker, at);
  int32_t in_block;
  int64_t rank = before[blockIdx.x][0] + SumBefore(__popc(word), &in_block);
  const uint32_t* const lows = rows.words + worker * rows.words_size + own.words;
  const uint32_t mask = (1u << own.low) - 1;
  const auto n = static_cast<uint32_t>(own.n);
  for (uint32_t left = word; left && rank < own.k; left &= left - 1, ++rank) {
    const auto bit = static_cast<uint32_t>(at * kWarp + __ffs(static_cast<int32_t>(left)) - 1);
    const uint32_t upper = bit - own.step * static_cast<uint32_t>(rank);
    uint32_t index = upper;
    if (own.low > 0) {
      const int64_t from = rank * own.low;
      const int shift = static_cast<int>(from % kWarp);
      const uint32_t* const pair = lows + from / kWarp;
      uint32_t low = pair[0] >> shift;
      if (shift + own.low > kWarp) low |= pair[1] << (kWarp - shift);
      index = upper <= (n - 1) >> own.low ? upper << own.low | (low & mask) : n;
    }
    indices[rank] = static_cast<int32_t>(index < n ? index : n);
  }
  const int64_t missing = totals[worker * table.count + tensor] + block * kThreads + threadIdx.x;
  for (int64_t i = missing; i < own.k; i += own.Blocks() * kThreads) {
    indices[i] = static_cast<int32_t>(n);
  }
}

// Sends the table of a list to the device; tensor i has pieces(i) pieces.
template <class Pieces>
Table<SetItem> SendSets(Launch& launch, SetItem* items, const IndexLayout* layouts, int64_t count,
                        const Pieces& pieces, bool* finite, int64_t* words, int64_t* entries) {
  *words = *entries = 0;
  return launch.Send(
      items, count,
      [=](int64_t i, int64_t first) {
        const SetItem item = SetItem::From(layouts[i], first, *words, *entries);
        *words += layouts[i].words;
        *entries += layouts[i].k;
        return item;
      },
      pieces, finite);
}

// The kernels that unpack sets. Called without a workspace it only takes rooms.
class Unpacker {
 public:
  Unpacker(Launch& launch, const IndexLayout* layouts, int64_t count, int64_t workers)
      : launch_(launch), layouts_(layouts), count_(count), workers_(workers) {
    for (int64_t i = 0; i < count; ++i) blocks_ += BlocksOf(layouts[i]);
    items_ = launch.Take<SetItem>(count);
    arrived_ = launch.Take<uint32_t>(workers * count);
    totals_ = launch.Take<int64_t>(workers * count);
    before_ = launch.Take<int64_t[1]>(workers * blocks_);
  }

  void Run(const uint32_t* words, int32_t* indices) {
    SetRows rows{words, 0, 0};
    const IndexLayout* const layouts = layouts_;
    launch_.Zero(arrived_, workers_ * count_);
    const auto table = SendSets(
        launch_, items_, layouts_, count_, [=](int64_t i) { return BlocksOf(layouts[i]); }, nullptr,
        &rows.words_size, &rows.entries_size);
    launch_.Run(CountBits, workers_ * blocks_, kThreads, table, rows, arrived_, before_, totals_);
    launch_.Run(UnpackPieces, workers_ * blocks_, kThreads, table, rows,
                static_cast<const int64_t (*)[1]>(before_), static_cast<const int64_t*>(totals_),
                indices);
  }

 private:
  Launch& launch_;
  const IndexLayout* const layouts_;
  const int64_t count_, workers_;
  int64_t blocks_ = 0;
  SetItem* items_;
  uint32_t* arrived_;
  int64_t* totals_;
  int64_t (*before_)[1];
};

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_pack_index_list(const IndexLayout* layouts, int64_t count,
                                            const int32_t* indices, const int32_t* counts,
                                            uint32_t* words, int32_t* fault, void* workspace,
                                            size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  SetItem* const items = launch.Take<SetItem>(count);
  FirstFault* const first = launch.Take<FirstFault>(1);
  if (launch.OnlyMeasures()) return 0;
  int64_t size = 0, entries;
  for (int64_t i = 0; i < count; ++i) size += layouts[i].words;
  launch.Zero(words, size);
  launch.Run(ClearFault, 1, 1, first);
  const auto table = SendSets(
      launch, items, layouts, count, [=](int64_t i) { return CeilDiv(layouts[i].k, kChunk); },
      nullptr, &size, &entries);
  launch.Run(PackPieces, table.pieces, kThreads, table, indices, counts, words, first);
  launch.Run(TellFault, 1, 1, table, indices, static_cast<const FirstFault*>(first), fault);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_unpack_index_list(const IndexLayout* layouts, int64_t count,
                                              const uint32_t* words, int64_t workers,
                                              int32_t* indices, void* workspace, size_t* bytes,
                                              void* stream) {
  Launch launch(workspace, bytes, stream);
  Unpacker unpacker(launch, layouts, count, workers);
  if (launch.OnlyMeasures()) return 0;
  unpacker.Run(words, indices);
  return launch.error();
}

GRACE_EXPORT int grace_cuda_scatter_set_list(const DecodeOutput* targets, int64_t count,
                                             const IndexLayout* layouts, const SetEntries* entries,
                                             float factor, bool* finite, int32_t* fault,
                                             void* workspace, size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  std::vector<int64_t> ks;
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) {
    ks.push_back(layouts[i].k);
    size += layouts[i].k;
  }
  Unpacker unpacker(launch, layouts, count, entries->workers);
  int32_t* const indices = launch.Take<int32_t>(entries->workers * size);
  const auto scatter = [&](void* room, size_t* room_bytes) {
    return grace_cuda_scatter_list(targets, count, entries->values, indices, entries->counts,
                                   entries->workers, ks.data(), factor, finite, fault, room,
                                   room_bytes, stream);
  };
  size_t scatter_bytes = 0;
  scatter(nullptr, &scatter_bytes);
  char* const room = launch.Take<char>(scatter_bytes);
  if (launch.OnlyMeasures()) return 0;
  unpacker.Run(entries->words, indices);
  return launch.error() ? launch.error() : scatter(room, &scatter_bytes);
}
