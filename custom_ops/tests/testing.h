// What the kernels' tests share: checks, guarded buffers, threads, all instruction sets.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../kernels/dispatch.h"
#include "../kernels/parallel.h"
#include "../kernels/words.h"

namespace grace {

inline int g_failures = 0;

#define EXPECT(condition, ...)                                            \
  do {                                                                    \
    if (!(condition) && ++::grace::g_failures <= 20) {                    \
      std::printf("%s:%d: not %s: ", __FILE__, __LINE__, #condition);     \
      std::printf(__VA_ARGS__);                                           \
      std::printf(" (%s)\n", ::grace::IsaName());                         \
    }                                                                     \
  } while (false)

// An output buffer full of garbage between two guards. Under the address sanitizer the guards are
// the sanitizer's own.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n), memory_(n + 2 * kGuard) {
    std::memset(static_cast<void*>(memory_.data()), 0xA5, memory_.size() * sizeof(T));
  }
  T* data() { return memory_.data() + kGuard; }
  T& operator[](int64_t i) { return data()[i]; }
  bool Intact() const {
    T poison;
    std::memset(static_cast<void*>(&poison), 0xA5, sizeof poison);
    for (int64_t i = 0; i < kGuard; ++i) {
      if (std::memcmp(&memory_[i], &poison, sizeof poison)) return false;
      if (std::memcmp(&memory_[kGuard + n_ + i], &poison, sizeof poison)) return false;
    }
    return true;
  }
  bool Equals(const std::vector<T>& other) {
    return int64_t(other.size()) == n_ &&
           (n_ == 0 || std::memcmp(data(), other.data(), n_ * sizeof(T)) == 0);
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr int64_t kGuard = 0;
#else
  static constexpr int64_t kGuard = 64;
#endif
  int64_t n_;
  std::vector<T> memory_;
};

// So many threads, each taking the next piece.
class Threads : public Executor {
 public:
  explicit Threads(int count) : count_(count) {}
  void For(int64_t total, int64_t grain, const Body& body) const override {
    std::atomic<int64_t> next{0};
    auto work = [&] {
      for (int64_t begin; (begin = next.fetch_add(grain)) < total;) {
        body(begin, std::min(total, begin + grain));
      }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < count_; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int count_;
};

// Calls body(executor) for every instruction set of this processor and a few thread counts.
template <class Body>
void OnEveryIsa(const Body& body) {
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (!SetIsa(isa)) continue;
    body(Serial());
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
