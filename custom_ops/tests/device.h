// What the tests of the CUDA kernels share. Each test compares the results with those of the
// kernels in the .cc files, bit for bit. The CUDA kernels run emulated on the processor, see
// kernels/base/device/emulation.h; compiled with GRACE_ON_GPU they run on a GPU.
#pragma once

#include <cstdlib>

#ifndef GRACE_ON_GPU
#include "kernels/base/device/emulation.h"
#endif
#include "corners.h"
#include "kernels/base/device/library.h"
#include "kernels/base/list.h"

namespace grace {

// Emulation takes long, so the tests leave out many cases there. On a GPU they leave out none, but
// where GRACE_FEW_CASES is set: under compute-sanitizer all cases would take hours.
#ifdef GRACE_ON_GPU
inline const bool kFewCases = std::getenv("GRACE_FEW_CASES") != nullptr;
#else
constexpr bool kFewCases = true;
#endif

// Calls a launcher as an operation does: the first call tells how large the workspace must be, and
// the second call gets a workspace of that size.
template <class... Parameters, class... Arguments>
void Launched(int (*launcher)(Parameters...), Arguments... arguments) {
  size_t bytes = 0;
  EXPECT(launcher(arguments..., nullptr, &bytes, nullptr) == 0, "measuring");
  const Guarded<char> workspace(bytes);
  EXPECT(launcher(arguments..., workspace.data(), &bytes, nullptr) == 0, "launching");
#ifdef GRACE_ON_GPU
  const cudaError_t error = cudaDeviceSynchronize();
  EXPECT(error == cudaSuccess, "%s", cudaGetErrorString(error));
#endif
  EXPECT(workspace.Intact(), "of %zu bytes", bytes);
}

// Calls body(name) with the threads of each block in every order. A GPU chooses the order of the
// threads and of the blocks itself, so the body runs several times there, but once where cases are
// left out. Each body makes the outputs of a kernel anew or spoils them: otherwise the results of
// the run before would hide elements that the kernel does not write.
template <class Body>
void OnEveryOrder(const Body& body) {
#ifdef GRACE_ON_GPU
  body("gpu");
  if (kFewCases) return;
  body("gpu again");
  body("gpu a third time");
#else
  using emulation::Order;
  emulation::SetOrder(Order::kForward);
  body("forward");
  emulation::SetOrder(Order::kBackward);
  body("backward");
  emulation::SetOrder(Order::kShuffled);
  body("shuffled");
#endif
}

// Calls body(name) with the threads in one order, which `turn` chooses. It is for kernels whose
// threads exchange many values: to emulate them in all orders for all lists would take too long.
template <class Body>
void OnOneOrder([[maybe_unused]] int turn, const Body& body) {
#ifdef GRACE_ON_GPU
  OnEveryOrder(body);
#else
  using emulation::Order;
  emulation::SetOrder(turn % 3 == 0   ? Order::kForward
                      : turn % 3 == 1 ? Order::kBackward
                                      : Order::kShuffled);
  body(turn % 3 == 0 ? "forward" : turn % 3 == 1 ? "backward" : "shuffled");
#endif
}

constexpr Kind kKinds[] = {Kind::kGradient, Kind::kAnyBits, Kind::kSpecial, Kind::kEqual,
                           Kind::kZero};

// Calls body({n}, kind) for one kind of values, which `turn` chooses. Where no cases are left out,
// it does so for every kind: first for the one that `turn` chooses, so that what a test chooses by
// its own turns meets every kind.
template <class Body>
void OnKinds(int64_t n, int64_t turn, const Body& body) {
  for (int64_t i = 0; i < (kFewCases ? 1 : 5); ++i) {
    body(std::vector<int64_t>{n}, kKinds[(turn + i) % 5]);
  }
}

// Calls body(lengths, kind) for the corners of lengths and of values: each length up to 257 and
// around powers of two, alone; and lists of many lengths, empty tensors among them unless `least`
// says otherwise. On a GPU each length alone has each kind of values, and a tensor that is empty is
// alone too.
template <class Body>
void OnEveryCorner(const Body& body, int64_t least = 0) {
  for (int64_t n = kFewCases ? 1 : least; n <= 257; ++n) OnKinds(n, n, body);
  for (const int64_t n : {2047, 2048, 2049, 4099, (1 << 16) - 1, (1 << 16) + 1}) {
    for (const Kind kind : kKinds) body(std::vector<int64_t>{n}, kind);
  }
  OnKinds((1 << 20) - 1, 1, body);
  OnKinds((1 << 20) + 1, 0, body);
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 700; ++i) many.push_back(std::max(least, i * i % 61));
  for (const Kind kind : kKinds) {
    body(std::vector<int64_t>{std::max<int64_t>(least, 0), 3, 5000, 64, 2048, 1,
                              std::max<int64_t>(least, 0)},
         kind);
  }
  body(many, Kind::kSpecial);
  if (!kFewCases) body(many, Kind::kGradient);
}

// As OnEveryCorner. Of the lengths beyond a few pieces only one is emulated, with one kind of
// values, for kernels whose emulation takes very long.
template <class Body>
void OnMostCorners(const Body& body, int64_t least = 0) {
  const auto most = [&](const std::vector<int64_t>& lengths, Kind kind) {
    const bool large = lengths[0] > 5000 || lengths.size() > 100;
    const bool chosen = lengths[0] == (1 << 16) + 1 && kind == Kind::kGradient;
    if (!kFewCases || !large || chosen) body(lengths, kind);
  };
  OnEveryCorner(most, least);
}

// The tensors of a list, each between guards and not at the beginning of a line.
//
// A GPU's arithmetic returns 0x7fffffff for every NaN. An x86 processor's keeps the bits of a NaN
// that it is given, and makes another of opposite infinities; the sign and the order of NaNs then
// differ. So all NaNs here are 0x7fffffff, which both keep, and residuals have no infinities.
class DeviceList {
 public:
  DeviceList(const std::vector<int64_t>& lengths, Kind kind, uint32_t seed, int64_t shift = 1)
      : lengths_(lengths) {
    for (const int64_t n : lengths) {
      std::vector<float> values = Values(kind, n, seed);
      for (float& value : values) value = value == value ? value : FloatOf(kMagnitude);
      tensors_.emplace_back(values, shift);
    }
  }
  static DeviceList Residuals(const std::vector<int64_t>& lengths, Kind kind) {
    DeviceList list(lengths, kind, 2);
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (int64_t j = 0; j < lengths[i]; ++j) {
        const uint32_t bits = BitsOf(list[i][j]);
        if ((bits & kMagnitude) == kInfinity) list[i][j] = FloatOf(bits - kSmallestNormal);
      }
    }
    return list;
  }
  // Of unset elements.
  explicit DeviceList(const std::vector<int64_t>& lengths, int64_t shift = 1) : lengths_(lengths) {
    for (const int64_t n : lengths) tensors_.emplace_back(n, shift);
  }
  float* operator[](size_t i) const { return tensors_[i].data(); }
  // The list as a decoder's output.
  std::vector<DecodeOutput> Targets() const {
    std::vector<DecodeOutput> targets;
    for (size_t i = 0; i < lengths_.size(); ++i) targets.push_back({(*this)[i], lengths_[i]});
    return targets;
  }
  void Spoil() const {
    for (const Guarded<float>& tensor : tensors_) tensor.Spoil();
  }
  // Whether every tensor has the bits of the other's, NaN for any NaN, and left its guards alone.
  bool Equals(const DeviceList& other) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].Intact()) return false;
      for (int64_t j = 0; j < lengths_[i]; ++j) {
        const float own = tensors_[i].data()[j], others = other.tensors_[i].data()[j];
        if (BitsOf(own) != BitsOf(others) && (own == own || others == others)) return false;
      }
    }
    return true;
  }

 private:
  std::vector<int64_t> lengths_;
  std::vector<Guarded<float>> tensors_;
};

// What an encoder reads and keeps. With `keep` there are residuals, and the encoder writes what it
// does not send: over the gradients where in_place, else apart.
struct Gradients {
  DeviceList xs, residuals, residual_out;
  std::vector<EncodeInput> sources;
  bool keep, in_place;

  Gradients(const std::vector<int64_t>& lengths, Kind kind, bool keeps, bool writes_over)
      : xs(lengths, kind, 1),
        residuals(DeviceList::Residuals(lengths, kind)),
        residual_out(lengths),
        keep(keeps),
        in_place(writes_over) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      float* to = !keep ? nullptr : in_place ? xs[i] : residual_out[i];
      sources.push_back({xs[i], keep ? residuals[i] : nullptr, to, lengths[i]});
    }
  }

  // Whether two encoders have kept the same.
  bool SameKept(const Gradients& other) const {
    return !keep || (in_place ? xs.Equals(other.xs) : residual_out.Equals(other.residual_out));
  }
};

template <class T>
bool SameBytes(const Guarded<T>& a, const Guarded<T>& b, int64_t n) {
  return a.Intact() && (n == 0 || std::memcmp(a.data(), b.data(), n * sizeof(T)) == 0);
}

// Whether floats are the same bits, NaN for any NaN.
inline bool SameFloats(const Guarded<float>& a, const Guarded<float>& b, int64_t n) {
  return a.Intact() && std::equal(a.data(), a.data() + n, b.data(), [](float x, float y) {
           return BitsOf(x) == BitsOf(y) || (x != x && y != y);
         });
}

}  // namespace grace
