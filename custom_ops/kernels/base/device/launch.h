// One call of a launcher: its workspace, its table of tensors, its kernels.
//
// A launcher allocates nothing and waits for nothing. Called without a workspace it only says how
// many bytes it needs. Called with one it starts kernels on the stream and returns 0, or the number
// of CUDA's error. What it knows of the tensors reaches the device as parameters of a kernel, which
// CUDA copies as it starts the kernel: memory of the host would have to outlive the launcher.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <type_traits>

#include "kernels/base/device/cuda.h"

namespace grace {

// The bytes of a kernel's parameters. Since CUDA 12.1 there may be 32764.
#if defined(CUDART_VERSION) && CUDART_VERSION < 12010
constexpr int kMostParcel = 4000;
#else
constexpr int kMostParcel = 32000;
#endif

template <int kBytes>
struct Parcel {
  alignas(8) uint32_t words[kBytes / 4];
};

// The number of words that each thread block of WriteTable copies. If the lanes of a warp read
// different words of a kernel's parameters, the GPU serves one lane after another. So the copying
// is divided among many thread blocks.
constexpr int kWordsOfBlock = 64;

// Writes a part of a table. `finite` becomes true, and this number of words from `zeros` on become
// 0.
template <int kBytes>
__global__ void WriteTable(const __grid_constant__ Parcel<kBytes> parcel, int words, uint32_t* to,
                           bool* finite, uint32_t* zeros, int64_t zero_words) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int word = static_cast<int>(blockIdx.x * kWordsOfBlock + threadIdx.x);
  if (threadIdx.x < kWordsOfBlock && word < words) to[word] = parcel.words[word];
  for (int64_t i = thread; i < zero_words; i += threads) zeros[i] = 0;
  if (thread == 0 && finite) *finite = true;
}

// The tensors of a list as kernels see them, and the pieces that blocks take. An Item has a member
// `first`: the number of its first piece; pieces are counted through the list. An Item whose
// tensors are cut in several ways has more such members.
template <class Item>
struct Table {
  const Item* items;
  int32_t count;
  int64_t pieces;

  // The tensor that a piece is of. All tensors have pieces, or those that have none are skipped.
  // A kernel whose blocks take other pieces names the member that counts these.
  __device__ int32_t Find(int64_t piece, int64_t Item::* counted = &Item::first) const {
    int32_t low = 0, high = count - 1;
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      if (items[middle].*counted <= piece) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // What the block takes of a tensor: elements [begin, begin + n), at most `size` of them.
  struct Part {
    Item own;
    int64_t begin, n;
  };
  __device__ Part Piece(int64_t size = kChunk) const {
    const Item own = items[Find(blockIdx.x)];
    const int64_t begin = (blockIdx.x - own.first) * size, left = own.n - begin;
    return {own, begin, left < size ? left : size};
  }
};

// The kernels that the library has started, for tests and benchmarks.
inline std::atomic<int64_t> g_launches{0};

class Launch {
 public:
  Launch(void* workspace, size_t* bytes, void* stream)
      : workspace_(static_cast<char*>(workspace)),
        bytes_(bytes),
        stream_(static_cast<cudaStream_t>(stream)) {}

  // Room for `count` T, which begins at a cache line.
  template <class T>
  T* Take(int64_t count) {
    T* const taken = reinterpret_cast<T*>(workspace_ + used_);
    used_ += CeilDiv(count * static_cast<int64_t>(sizeof(T)), kLine) * kLine;
    return taken;
  }

  // After all rooms are taken: whether the bytes were all that was asked for.
  bool OnlyMeasures() {
    if (!workspace_) *bytes_ = used_;
    return !workspace_;
  }

  // Words that Send sets to 0.
  void Zero(uint32_t* words, int64_t count) {
    zeros_ = words;
    zero_words_ = count;
  }

  // Writes the table of this many tensors to `items`, which has room for them. make(i, first) gives
  // the i-th, whose first piece has the number `first`; pieces(i) tells how many it has. Sets
  // `finite`, unless it is null, to true.
  template <class Item, class Make, class Pieces>
  Table<Item> Send(Item* items, int64_t count, const Make& make, const Pieces& pieces,
                   bool* finite) {
    static_assert(std::is_trivially_copyable_v<Item> && sizeof(Item) % 4 == 0);
    constexpr int64_t kMost = kMostParcel / sizeof(Item);
    Parcel<kMostParcel> parcel;
    int64_t first = 0;
    for (int64_t i = 0; i < count || i == 0; i += kMost) {
      const int64_t some = std::min(kMost, count - i);
      for (int64_t j = 0; j < some; ++j) {
        const Item item = make(i + j, first);
        std::memcpy(parcel.words + j * sizeof(Item) / 4, &item, sizeof item);
        first += pieces(i + j);
      }
      SendPart(parcel, some * sizeof(Item) / 4, reinterpret_cast<uint32_t*>(items + i), finite);
    }
    return {items, static_cast<int32_t>(count), first};
  }

  // As Send, for pieces of `size` of a tensor's elements, which its Item counts in a member `n`.
  template <class Item, class Make>
  Table<Item> SendPieces(Item* items, int64_t count, const Make& make, bool* finite,
                         int64_t size = kChunk) {
    int64_t n = 0;
    const auto counted = [&](int64_t i, int64_t first) {
      const Item item = make(i, first);
      n = item.n;
      return item;
    };
    return Send(items, count, counted, [&](int64_t) { return CeilDiv(n, size); }, finite);
  }

  // All of a launcher that has one kernel, whose blocks take a piece each.
  template <class Item, class... Parameters, class Make, class... Arguments>
  int RunPieces(void (*kernel)(Table<Item>, Parameters...), int64_t count, const Make& make,
                bool* finite, Arguments... arguments) {
    Item* const items = Take<Item>(count);
    if (OnlyMeasures()) return 0;
    const Table<Item> table = SendPieces(items, count, make, finite);
    Run(kernel, table.pieces, kThreads, table, arguments...);
    return error();
  }

  template <class... Parameters, class... Arguments>
  void Run(void (*kernel)(Parameters...), int64_t blocks, int threads, Arguments... arguments) {
    if (blocks == 0 || error_) return;
    ++g_launches;
#ifdef GRACE_EMULATE_CUDA
    emulation::Run(blocks, threads, [=] { kernel(arguments...); });
#else
    // clang-format off
    kernel<<<static_cast<unsigned>(blocks), threads, 0, stream_>>>(arguments...);
    // clang-format on
    error_ = cudaGetLastError();
#endif
  }

  int error() const { return error_; }

 private:
  void SendPart(const Parcel<kMostParcel>& parcel, int words, uint32_t* to, bool* finite) {
    constexpr int kFew = 2000;
    const int64_t blocks =
        std::max(std::clamp<int64_t>(zero_words_ / 4096, 1, 1024), CeilDiv(words, kWordsOfBlock));
    if (4 * words <= kFew) {
      Parcel<kFew> few;
      std::memcpy(few.words, parcel.words, 4 * words);
      Run(WriteTable<kFew>, blocks, kThreads, few, words, to, finite, zeros_, zero_words_);
    } else {
      Run(WriteTable<kMostParcel>, blocks, kThreads, parcel, words, to, finite, zeros_,
          zero_words_);
    }
    zero_words_ = 0;
  }

  char* const workspace_;
  size_t* const bytes_;
  const cudaStream_t stream_;
  int64_t used_ = 0, zero_words_ = 0;
  uint32_t* zeros_ = nullptr;
  int error_ = 0;
};

}  // namespace grace
