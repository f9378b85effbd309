// What the kernels' tests share: checks, guarded buffers, threads, all instruction sets.
#pragma once

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#ifdef GRACE_ON_GPU
#include "gpu_memory.h"
#endif

#include "kernels/base/dispatch.h"
#include "kernels/base/parallel.h"
#include "kernels/base/words.h"

namespace grace {

inline int g_failures = 0;

#define EXPECT(condition, ...)                                        \
  do {                                                                \
    if (!(condition) && ++::grace::g_failures <= 20) {                \
      std::printf("%s:%d: not %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                       \
      std::printf(" (%s)\n", ::grace::IsaName());                     \
    }                                                                 \
  } while (false)

#ifdef GRACE_ON_GPU
using Memory = std::vector<unsigned char, Managed<unsigned char>>;
#else
using Memory = std::vector<unsigned char>;
#endif

// A buffer between two guards, which the address sanitizer knows of. It begins `shift` elements
// after a cache line does, and is full of garbage, other garbage in each. A guard that was written
// is a failure of the test at the latest when the buffer goes.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n, int64_t shift = 0)
      : n_(n), memory_((n + shift) * sizeof(T) + 2 * kGuard + kLine, kPoison) {
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard + kLine - 1;
    data_ = reinterpret_cast<T*>(begin / kLine * kLine) + shift;
    Spoil();
    Forbid(true);
  }
  // One that holds these.
  explicit Guarded(const std::vector<T>& from, int64_t shift = 0) : Guarded(from.size(), shift) {
    std::copy(from.begin(), from.end(), data_);
  }
  Guarded(Guarded&&) = default;
  Guarded& operator=(Guarded&&) = default;
  ~Guarded() {
    if (memory_.empty()) return;
    EXPECT(Intact(), "%ld elements of %d bytes", long(n_), int(sizeof(T)));
    Forbid(false);
  }

  T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  // Fills the buffer with other garbage than before.
  void Spoil() const {
    static unsigned char garbage = 0;
    std::memset(static_cast<void*>(data_), ++garbage, n_ * sizeof(T));
  }
  bool Intact() const {
    Forbid(false);
    const auto poison = [](unsigned char byte) { return byte == kPoison; };
    const bool intact = std::all_of(memory_.data(), Bytes(), poison) &&
                        std::all_of(Bytes() + n_ * sizeof(T), End(), poison);
    Forbid(true);
    return intact;
  }
  bool Equals(const std::vector<T>& other) const {
    return int64_t(other.size()) == n_ &&
           (n_ == 0 || std::memcmp(data_, other.data(), n_ * sizeof(T)) == 0);
  }

 private:
  const unsigned char* Bytes() const { return reinterpret_cast<const unsigned char*>(data_); }
  const unsigned char* End() const { return memory_.data() + memory_.size(); }
  void Forbid(bool forbid) const {
#ifdef __SANITIZE_ADDRESS__
    const unsigned char* after = Bytes() + n_ * sizeof(T);
    const auto set = forbid ? __asan_poison_memory_region : __asan_unpoison_memory_region;
    set(memory_.data(), Bytes() - memory_.data());
    set(after, End() - after);
#else
    (void)forbid;
#endif
  }

  static constexpr int64_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xA5;
  int64_t n_;
  Memory memory_;
  T* data_;
};

// So many threads, but not more than there are pieces. Each has one piece of its own, however late
// it starts, and then takes the next ones. An order between the pieces of two threads would hide
// races from the thread sanitizer, so the counter of pieces is relaxed.
class Threads : public Executor {
 public:
  explicit Threads(int count) : count_(count) {}
  void For(int64_t total, int64_t grain, const Body& body) const override {
    const int64_t pieces = CeilDiv(total, grain), count = std::min<int64_t>(count_, pieces);
    std::atomic<int64_t> next{count};
    const auto work = [&](int64_t piece) {
      for (; piece < pieces; piece = next.fetch_add(1, std::memory_order_relaxed)) {
        body(piece * grain, std::min(total, (piece + 1) * grain));
      }
    };
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < count; ++i) threads.emplace_back(work, i);
    if (count > 0) work(0);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int count_;
};

// The thread sanitizer has nothing to see where one thread works, and is slow.
#ifdef __SANITIZE_THREAD__
constexpr bool kOneThreadToo = false;
#else
constexpr bool kOneThreadToo = true;
#endif

// Calls body(executor) for every instruction set of this processor and a few thread counts.
template <class Body>
void OnEveryIsa(const Body& body) {
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (!SetIsa(isa)) continue;
    if (kOneThreadToo) body(Serial());
    body(Threads(3));
  }
  SetIsa("auto");
}

inline std::vector<int64_t> Lengths() {
  std::vector<int64_t> lengths;
  for (int64_t n = 1; n <= 257; ++n) lengths.push_back(n);
  for (int64_t n : {511, 512, 513, 1 << 16, (1 << 16) + 1, (1 << 20) - 1, (1 << 20) + 1}) {
    lengths.push_back(n);
  }
  return lengths;
}

// Normal numbers with zeros of both signs, denormals and ties among them.
inline std::vector<float> Gradient(int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = normal(random);
    if (i % 7 == 0) x[i] = i % 2 ? 0.0f : -0.0f;
    if (i % 13 == 5) x[i] *= 1e-38f;
    if (i % 17 == 3) x[i] = 1.25f;
  }
  return x;
}

inline int Finish(const char* name) {
  std::printf("%s: %s\n", name, g_failures ? "FAILED" : "ok");
  return g_failures != 0;
}

}  // namespace grace
