// What the test of the corners compares, and the corners of values.
#pragma once

#include <string>
#include <vector>

#include "testing.h"

namespace grace {

// Runs all pieces on the calling thread, from the last piece to the first.
class Backwards : public Executor {
 public:
  void For(int64_t total, int64_t grain, const Body& body) const override {
    for (int64_t i = CeilDiv(total, grain) - 1; i >= 0; --i) {
      body(i * grain, std::min(total, (i + 1) * grain));
    }
  }
};

// The bits of results, one after another; all NaNs are one.
class Results {
 public:
  template <class T>
  void Take(const char* name, const Guarded<T>& own, int64_t n) {
    Begin(name);
    intact_.back() = own.Intact();
    for (int64_t i = 0; i < n; ++i) Append(own.data()[i]);
  }
  void Take(const char* name, const std::vector<Guarded<float>>& list,
            const std::vector<int64_t>& lengths) {
    for (size_t i = 0; i < list.size(); ++i) Take(name, list[i], lengths[i]);
  }
  void Take(const char* name, bool flag) {
    Begin(name);
    bits_.push_back(flag);
  }
  void Take(const char* name, const std::string& sentence) {
    Begin(name);
    bits_.insert(bits_.end(), sentence.begin(), sentence.end());
  }

  // The first result that left its place or differs from the other's; null if none.
  const char* Fault(const Results& other) const {
    for (size_t i = 0; i < names_.size(); ++i) {
      const size_t begin = starts_[i], end = i + 1 < names_.size() ? starts_[i + 1] : bits_.size();
      const bool same =
          end <= other.bits_.size() &&
          std::equal(bits_.data() + begin, bits_.data() + end, other.bits_.data() + begin);
      if (!intact_[i] || !same) return names_[i];
    }
    return bits_.size() == other.bits_.size() ? nullptr : "sizes";
  }

 private:
  void Begin(const char* name) {
    names_.push_back(name);
    starts_.push_back(bits_.size());
    intact_.push_back(true);
  }
  void Append(float x) { bits_.push_back(x != x ? 0x7fc00000u : BitsOf(x)); }
  void Append(uint16_t x) { bits_.push_back(x); }
  void Append(uint32_t x) { bits_.push_back(x); }
  void Append(int32_t x) { bits_.push_back(static_cast<uint32_t>(x)); }

  std::vector<const char*> names_;
  std::vector<size_t> starts_;
  std::vector<bool> intact_;
  std::vector<uint32_t> bits_;
};

enum class Kind { kGradient, kAnyBits, kSpecial, kEqual, kZero };

inline std::vector<float> Values(Kind kind, int64_t n, uint32_t seed) {
  const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                              0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001,
                              0xffc00000, 0x33000000, 0x477ff000, 0x3f7fffff, 0x08800000};
  std::mt19937 random(seed + static_cast<uint32_t>(n));
  std::vector<float> x = kind == Kind::kGradient ? Gradient(n) : std::vector<float>(n);
  for (float& value : x) {
    if (kind == Kind::kAnyBits) value = FloatOf(random());
    if (kind == Kind::kSpecial) value = FloatOf(special[random() % 15]);
    if (kind == Kind::kEqual) value = -2.0f;
  }
  return x;
}

constexpr int64_t kWorkers = 3;

// The rows of workers that sent the same n elements.
template <class T>
Guarded<T> Repeated(const Guarded<T>& row, int64_t n, int64_t shift) {
  Guarded<T> rows(kWorkers * n, shift);
  for (int64_t w = 0; w < kWorkers; ++w) std::copy_n(row.data(), n, rows.data() + w * n);
  return rows;
}

}  // namespace grace
