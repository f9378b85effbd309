#include "kernels/select/selector.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/base/dispatch.h"

#define GRACE_KERNEL "kernels/select/pick_sides-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

// What a thread collects of a piece.
struct Scratch {
  std::array<int32_t, kGrain + kSlack> indices;
  std::array<uint32_t, kGrain + kSlack> bits;

  static Scratch& OfThread() {
    static thread_local Scratch scratch;
    return scratch;
  }
};

}  // namespace

Selector::Selector(const Executor& executor, const std::vector<EncodeInput>& sources,
                   float multiplier, const Selection& selection, KeyRange range, int32_t* counts,
                   int sides)
    : executor_(executor),
      sources_(sources),
      multiplier_(multiplier),
      selection_(selection),
      range_(range),
      counts_(counts),
      sides_(sides),
      loop_(LoopOver(sources)),
      bypass_(TooLargeToCache(loop_.total())),
      tensors_(sources.size()) {
  int64_t entries = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    Tensor& tensor = tensors_[i];
    tensor.entries = entries;
    entries += selection.ks[i];
    tensor.limit = sources[i].n;
    if (!IsLarge(i)) continue;
    tensor.limit = 2 * selection.ks[i] + sources[i].n * sides / 64;
    tensor.stretches.resize(CeilDiv(sources[i].n, kGrain));
  }
}

bool Selector::Run() {
  executor_.For(sources_.size(), 1, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t i = begin; i < end; ++i) {
      if (IsLarge(i)) tensors_[i].least = Sampled(i);
    }
  });
  std::atomic<bool> finite{true};
  // A large tensor is cut into stretches. A small tensor is not cut.
  const auto cut = [this](size_t i, int64_t element) {
    return IsLarge(i) ? CutAt{kGrain}(i, element) : sources_[i].n;
  };
  loop_.For(executor_, cut, [&](size_t i, int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    if (!IsLarge(i)) tensors_[i].least = Sampled(i);
    if (!Encode(i, begin, end)) finite = false;
    if (!IsLarge(i)) Finish(Serial(), i);
  });
  FinishRest();
  return finite;
}

bool Selector::Compute(int64_t i, int64_t begin, int64_t count, bool, float* acc) const {
  const EncodeInput& source = sources_[i];
  const float* residual = source.residual ? source.residual + begin : nullptr;
  return compensate_(source.x + begin, residual, multiplier_, count, acc);
}

void Selector::Prefetch(int64_t i, int64_t at) const {
  __builtin_prefetch(sources_[i].x + at);
  if (sources_[i].residual) __builtin_prefetch(sources_[i].residual + at);
}

// For each side a key that somewhat more elements reach than are sent, if a sample tells, and else
// the floor. A sampled key is at least 1: where most elements are 0, those that are not may be
// enough.
Selector::Keys Selector::Sampled(int64_t i) const {
  constexpr int64_t kWorthSampling = 512;
  const int64_t n = sources_[i].n, k = selection_.ks[i];
  Keys least{range_.floor, range_.floor};
  if (n < kWorthSampling || k > n / 4) return least;
  // The elements of a run are neighbours in memory, which share a cache line.
  constexpr int64_t kRun = 4;
  const double share = static_cast<double>(k) / static_cast<double>(n);
  const int64_t wanted = std::min(static_cast<int64_t>(400 / share), n / 256);
  const int64_t fewest = std::clamp<int64_t>(n / 64, 256, 1024);
  const int64_t runs = std::clamp<int64_t>(wanted, fewest, 1 << 16) / kRun;
  // With an even number of runs a row, an even step would come to some columns of a matrix only.
  const int64_t all = n / kRun, step = (all / runs) | 1;
  const auto after = [=](int64_t run) { return run + step < all ? run + step : run + step - all; };
  // The runs lie in different pages of memory, so the processor cannot fetch the next one by
  // itself.
  constexpr int64_t kAhead = 16;
  int64_t ahead = 0;
  for (int64_t r = 0; r < kAhead; ++r, ahead = after(ahead)) Prefetch(i, ahead * kRun);
  std::array<std::vector<uint32_t>, 2> keys;
  for (int side = 0; side < sides_; ++side) keys[side].reserve(runs * kRun);
  for (int64_t r = 0, run = 0; r < runs; ++r, run = after(run), ahead = after(ahead)) {
    Prefetch(i, ahead * kRun);
    float acc[kRun];
    Compute(i, run * kRun, kRun, false, acc);
    for (const float value : acc) {
      const uint32_t bits = BitsOf(value), key = bits & kMagnitude;
      if (key >= range_.floor) keys[sides_ == 2 ? bits >> 31 : 0].push_back(key);
    }
  }
  // What is below the floor is not sent: of all others the share is larger.
  const double seen = static_cast<double>(keys[0].size() + keys[1].size());
  const double fraction = share * static_cast<double>(runs * kRun) / std::max(seen, 1.0);
  // In one of a thousand tensors fewer reach the key than wanted, and a second look finds them. How
  // much of a side is sent is itself known from the sample only.
  const double margin = sides_ == 2 ? 4 : 3;
  for (int side = 0; side < sides_; ++side) {
    std::vector<uint32_t>& own = keys[side];
    const double expected = static_cast<double>(own.size()) * fraction;
    const auto rank = static_cast<size_t>(expected + margin * std::sqrt(expected) + 2);
    if (rank < own.size()) {
      std::nth_element(own.begin(), own.begin() + rank, own.end(), std::greater<uint32_t>());
      least[side] = own[rank];
    }
    least[side] = std::max<uint32_t>(least[side], 1);
  }
  return least;
}

bool Selector::Encode(int64_t i, int64_t first, int64_t last) {
  const auto pick_sides = GRACE_CHOOSE(PickSides);
  Tensor& tensor = tensors_[i];
  Scratch& scratch = Scratch::OfThread();
  const bool collecting = tensor.least[0] > 0 && tensor.total.load() <= tensor.limit;
  int64_t count = 0;
  std::array<int64_t, 2> sizes{};
  const auto compute = [&](int64_t begin, int64_t size, float* acc) {
    return Compute(i, begin, size, true, acc);
  };
  const auto visit = [&](int64_t begin, int64_t size, const float* acc, float* writable) {
    Note(i, begin, size, acc);
    int32_t* const indices = scratch.indices.data() + count;
    uint32_t* const bits = scratch.bits.data() + count;
    int64_t more = 0;
    if (sides_ == 2) {
      more = pick_sides(acc, begin, size, tensor.least.data(), indices, bits, &sizes[0], &sizes[1]);
    } else if (collecting) {
      more = collect_(acc, begin, size, tensor.least[0], indices, bits);
    }
    if (Clears(i)) {
      for (int64_t j = 0; j < more; ++j) writable[indices[j] - begin] = 0.0f;
    }
    count += more;
  };
  const bool finite =
      EncodePieceBy(sources_[i], IsPlain(i), compute, first, last, bypass_ && IsLarge(i), visit);
  EndStores(bypass_);
  for (int side = 0; side < sides_; ++side) tensor.sizes[side] += sizes[side];
  if (collecting) {
    if (!IsLarge(i)) tensor.stretches.resize(1);
    tensor.stretches[first / kGrain].Hold(scratch.indices.data(), scratch.bits.data(), count,
                                          IsLarge(i));
    tensor.total += count;
  } else {
    tensor.total = INT64_MAX / 2;
  }
  return finite;
}

void Selector::FinishRest() {
  std::vector<int64_t> alone, shared;
  for (size_t i = 0; i < sources_.size(); ++i) {
    // No thread came to an empty tensor.
    if (!IsLarge(i) && sources_[i].n > 0) continue;
    (sources_[i].n > loop_.total() / 4 ? alone : shared).push_back(i);
  }
  const DenormalsAreZero scope;
  for (const int64_t i : alone) Finish(executor_, i);
  executor_.For(shared.size(), 1, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero scope;
    for (int64_t j = begin; j < end; ++j) Finish(Serial(), shared[j]);
  });
}

void Selector::Finish(const Executor& executor, int64_t i) {
  const EncodeInput& source = sources_[i];
  Tensor& tensor = tensors_[i];
  if (tensor.least[0] > 0 && tensor.total <= tensor.limit) {
    const int64_t size = tensor.stretches.size();
    if (Choose(executor, i, {tensor.stretches.data(), size}, true)) return;
  }
  for (const Stretch& stretch : tensor.stretches) {
    for (int64_t j = 0; Clears(i) && j < stretch.count; ++j) {
      source.residual_out[stretch.Index(j)] = FloatOf(stretch.Bits(j));
    }
  }
  std::vector<float> room;
  const float* acc = source.residual_out ? source.residual_out : source.x;
  if (!source.residual_out && !IsPlain(i)) {
    room.resize(source.n);
    executor.For(source.n, kGrain, [&](int64_t begin, int64_t end) {
      const DenormalsAreZero scope;
      Compute(i, begin, end - begin, false, room.data() + begin);
    });
    acc = room.data();
  }
  const std::vector<Stretch> all = Whole(acc, source.n);
  Choose(executor, i, {all.data(), static_cast<int64_t>(all.size())}, false);
}

Bound Selector::BoundOf(const Executor& executor, Stretches stretches, int64_t k, uint32_t least,
                        KeyRange range) {
  if (Total(stretches) > k) {
    const Bound largest = Largest(executor, stretches, k, least);
    if (largest.key >= range.floor) return {largest.key, largest.ties, range.most};
  }
  return range.floor > 0 ? Bound{range.floor - 1, 0, range.most} : Bound{0, k, range.most};
}

bool Selector::Choose(const Executor& executor, int64_t i, Stretches stretches, bool collected) {
  const Tensor& tensor = tensors_[i];
  const int64_t k = selection_.ks[i];
  const uint32_t floor = Floor(executor, i, stretches), least = collected ? tensor.least[0] : 0;
  if (floor < least && Total(stretches) < k) return false;
  const Bound bound = BoundOf(executor, stretches, k, least, {floor, range_.most});
  float* const values = selection_.values + tensor.entries;
  int32_t* const indices = selection_.indices + tensor.entries;
  const Sent sent{values, indices, sources_[i].residual_out, collected && Clears(i)};
  const int64_t written = Send<1>(executor, stretches, {bound}, sent);
  std::fill(values + written, values + k, 0.0f);
  std::fill(indices + written, indices + k, 0);
  if (counts_) counts_[i] = static_cast<int32_t>(written);
  return true;
}

}  // namespace grace
