#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/base/device/philox.h"
#include "kernels/base/device/stretches.h"
#include "kernels/select/random_k.h"

namespace grace {
namespace {

// A tensor and what goes with the subset that is drawn of it; what a kernel has no use for is null.
struct RandomItem {
  DeviceInput source;
  float* dense;   // residual_out, or the total
  float* values;  // written when encoding, read when decoding
  int32_t* indices;
  PhiloxKey key;
  int64_t n, first;
  int32_t k, rounds, a, b;  // there are a * b pairs
  float multiplier;         // of x when encoding, of the values when decoding
  int32_t unused;
};

// What tells the subsets of all tensors. All of it begins at 0.
struct Subsets {
  uint32_t* words;    // for each stretch, a bit for each element
  uint32_t* before;   // how many of a stretch are drawn; then: of the stretches before it
  uint32_t* arrived;  // for each tensor
};

// A word of the stream, times scale / 2^32: an entry of a round's table. It is drawn where it is
// needed, which costs less than tables in memory.
__device__ uint32_t Entry(const PhiloxKey& key, uint32_t at, uint32_t scale) {
  const PhiloxWords block = PhiloxBlock(key, at / 4);
  const uint32_t even = at & 2 ? block.words[2] : block.words[0];
  const uint32_t odd = at & 2 ? block.words[3] : block.words[1];
  return __umulhi(at & 1 ? odd : even, scale);
}

// What a number becomes.
__device__ uint32_t Permuted(const RandomItem& own, uint32_t number) {
  const uint32_t a = own.a, b = own.b;
  uint32_t l = number / b, r = number % b;
  do {
    for (uint32_t round = 0, table = 0; round < static_cast<uint32_t>(own.rounds); round += 2) {
      l += Entry(own.key, table + r, a);
      if (l >= a) l -= a;
      table += b;
      r += Entry(own.key, table + l, b);
      if (r >= b) r -= b;
      table += a;
    }
  } while (static_cast<uint64_t>(l) * b + r >= static_cast<uint64_t>(own.n));
  return l * b + r;
}

// The blocks of a tensor's stretches share out its k draws and mark what is drawn. No number is
// drawn twice, so that the marks are the subset in order of index.
__global__ void __launch_bounds__(kThreads) DrawShares(Table<RandomItem> table, Subsets subsets) {
  const int32_t tensor = table.Find(blockIdx.x);
  const RandomItem own = table.items[tensor];
  const int64_t stretches = StretchesOf(own.n), share = blockIdx.x - own.first;
  const int64_t end = (share + 1) * own.k / stretches;
  for (int64_t i = share * own.k / stretches + threadIdx.x; i < end; i += kThreads) {
    const uint32_t at = Permuted(own, static_cast<uint32_t>(i));
    const int64_t word = own.first * kStretchWords + at / kWarp;
    atomicOr(subsets.words + word, 1u << at % kWarp);
    atomicAdd(subsets.before + word / kStretchWords, 1u);
  }
  if (!ArrivesAsLast(subsets.arrived + tensor, stretches)) return;
  SumsBefore(subsets.before + own.first, stretches);
}

// Tells of the elements of this warp's chunk, in order, whether they are drawn and where in the
// subset. All threads of the block must make one.
class Places {
 public:
  __device__ explicit Places(const Subsets& subsets)
      : words_(subsets.words + (blockIdx.x * int64_t{kWarps} + WarpOf()) * kGroups) {
    // Thread t counts the t-th pair of words of the stretch.
    const uint32_t* const pair = words_ + 2 * Lane();
    uint32_t total;
    const uint32_t before = SumBefore<uint32_t>(__popc(pair[0]) + __popc(pair[1]), &total);
    before_ = subsets.before[blockIdx.x] + __shfl_sync(kAllLanes, before, 0);
  }

  // Of kEach groups from the `from`-th on: a place below 0 where the element is not drawn.
  __device__ void Next(int from, int32_t* places) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t word = words_[from + j];
      const uint32_t place = before_ + __popc(word & LanesBefore());
      places[j] = word >> Lane() & 1 ? static_cast<int32_t>(place) : -1;
      before_ += __popc(word);
    }
  }

 private:
  const uint32_t* const words_;
  uint32_t before_;
};

// A block encodes a stretch: writes what is drawn to its place, and the rest to `residual_out`.
__global__ void __launch_bounds__(kThreads, 3)
    EncodeStretches(Table<RandomItem> table, Subsets subsets, bool* finite) {
  const RandomItem own = table.items[table.Find(blockIdx.x)];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  Places subset(subsets);
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float acc[kEach];
    int32_t places[kEach];
    own.source.Gather<kEach>([&](int j) { return chunk.At(from + j) < own.n; },
                             [&](int j) { return chunk.At(from + j); }, own.multiplier, 0.0f, acc);
#pragma unroll
    for (int j = 0; j < kEach; ++j) all &= IsFinite(acc[j]);
    subset.Next(from, places);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = chunk.At(from + j);
      if (at >= own.n) continue;
      if (places[j] >= 0) own.values[places[j]] = acc[j];
      if (!own.dense) continue;
      // A zero is sent as +0, so that it stays what it is.
      const bool zero = (__float_as_uint(acc[j]) & kMagnitude) == 0;
      own.dense[at] = places[j] < 0 || zero ? acc[j] : SubZ(acc[j], acc[j]);
    }
  }
  if (!all) *finite = false;
}

// A block writes a stretch of the totals.
__global__ void __launch_bounds__(kThreads)
    DecodeStretches(Table<RandomItem> table, Subsets subsets, float factor, bool* finite) {
  const RandomItem own = table.items[table.Find(blockIdx.x)];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  Places subset(subsets);
  bool all = true;
  for (int from = 0; from < chunk.groups; from += kEach) {
    float values[kEach];
    int32_t places[kEach];
    subset.Next(from, places);
#pragma unroll
    for (int j = 0; j < kEach; ++j) values[j] = places[j] < 0 ? 0.0f : own.values[places[j]];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float total = MulZ(PlainFlush(MulZ(values[j], own.multiplier)), factor);
      const int64_t at = chunk.At(from + j);
      if (at >= own.n) continue;
      own.dense[at] = total;
      all &= IsFinite(total);
    }
  }
  if (!all) *finite = false;
}

__global__ void __launch_bounds__(kThreads)
    IndexStretches(Table<RandomItem> table, Subsets subsets) {
  const RandomItem own = table.items[table.Find(blockIdx.x)];
  const WarpChunk chunk(blockIdx.x - own.first, own.n);
  Places subset(subsets);
  for (int from = 0; from < chunk.groups; from += kEach) {
    int32_t places[kEach];
    subset.Next(from, places);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (places[j] >= 0) own.indices[places[j]] = static_cast<int32_t>(chunk.At(from + j));
    }
  }
}

// The rooms of a launcher, and its table, for this number of tensors; length(i) is that of the
// i-th.
template <class Length>
class Draw {
 public:
  Draw(Launch& launch, int64_t count, const Length& length)
      : launch_(launch), count_(count), length_(length) {
    for (int64_t i = 0; i < count; ++i) stretches_ += StretchesOf(length(i));
    items_ = launch.Take<RandomItem>(count);
    const int64_t words = stretches_ * (kStretchWords + 1) + count;
    subsets_.words = launch.Take<uint32_t>(words);
    subsets_.before = subsets_.words + stretches_ * kStretchWords;
    subsets_.arrived = subsets_.before + stretches_;
    launch.Zero(subsets_.words, words);
  }

  // fill(i, at, item) adds to the i-th tensor's item, whose part of the values begins at `at`.
  template <class Fill>
  void Mark(const PhiloxKey* keys, const int64_t* ks, bool* finite, const Fill& fill) {
    int64_t at = 0;
    table_ = launch_.Send(
        items_, count_,
        [&](int64_t i, int64_t first) {
          const int64_t n = length_(i);
          const Pairs pairs(n);
          RandomItem item{};
          item.key = keys[i];
          item.n = n;
          item.first = first;
          item.k = static_cast<int32_t>(ks[i]);
          item.rounds = static_cast<int32_t>(pairs.rounds);
          item.a = static_cast<int32_t>(pairs.a);
          item.b = static_cast<int32_t>(pairs.b);
          fill(i, at, &item);
          at += ks[i];
          return item;
        },
        [&](int64_t i) { return StretchesOf(length_(i)); }, finite);
    launch_.Run(DrawShares, stretches_, kThreads, table_, subsets_);
  }

  // Runs a kernel for each stretch.
  template <class Kernel, class... Arguments>
  int Then(Kernel kernel, Arguments... arguments) {
    launch_.Run(kernel, stretches_, kThreads, table_, subsets_, arguments...);
    return launch_.error();
  }

 private:
  Launch& launch_;
  const int64_t count_;
  const Length length_;
  int64_t stretches_ = 0;
  RandomItem* items_;
  Subsets subsets_;
  Table<RandomItem> table_{};
};

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_random_indices(const PhiloxKey* key, int64_t n, int64_t k,
                                           int32_t* indices, void* workspace, size_t* bytes,
                                           void* stream) {
  Launch launch(workspace, bytes, stream);
  Draw draw(launch, 1, [=](int64_t) { return n; });
  if (launch.OnlyMeasures()) return 0;
  draw.Mark(key, &k, nullptr, [=](int64_t, int64_t, RandomItem* item) { item->indices = indices; });
  return draw.Then(IndexStretches);
}

GRACE_EXPORT int grace_cuda_random_k_list(const EncodeInput* list, int64_t count, float multiplier,
                                          const PhiloxKey* keys, const int64_t* ks, float* values,
                                          bool* finite, void* workspace, size_t* bytes,
                                          void* stream) {
  Launch launch(workspace, bytes, stream);
  Draw draw(launch, count, [=](int64_t i) { return list[i].n; });
  if (launch.OnlyMeasures()) return 0;
  draw.Mark(keys, ks, finite, [=](int64_t i, int64_t at, RandomItem* item) {
    item->source = {list[i].x, list[i].residual};
    item->dense = list[i].residual_out;
    item->values = values + at;
    item->multiplier = multiplier;
  });
  return draw.Then(EncodeStretches, finite);
}

GRACE_EXPORT int grace_cuda_scatter_random_list(const DecodeOutput* list, int64_t count,
                                                const PhiloxKey* keys, const int64_t* ks,
                                                const float* scales, const float* values,
                                                float factor, bool* finite, void* workspace,
                                                size_t* bytes, void* stream) {
  Launch launch(workspace, bytes, stream);
  Draw draw(launch, count, [=](int64_t i) { return list[i].n; });
  if (launch.OnlyMeasures()) return 0;
  draw.Mark(keys, ks, finite, [=](int64_t i, int64_t at, RandomItem* item) {
    item->dense = list[i].total;
    item->values = const_cast<float*>(values) + at;
    item->multiplier = scales ? scales[i] : 1.0f;
  });
  return draw.Then(DecodeStretches, factor, finite);
}
