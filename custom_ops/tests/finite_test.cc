#include "kernels/base/finite.h"

#include <cmath>

#include "testing.h"

namespace grace {

void TestOneBadElementAnywhere() {
  for (const int64_t n : Lengths()) {
    std::vector<float> x(n, 3e38f);
    OnEveryIsa([&](const Executor& executor) {
      EXPECT(AllFinite(executor, x.data(), n), "n = %ld", long(n));
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
          x[at] = bad;
          EXPECT(!AllFinite(executor, x.data(), n), "%f at %ld of %ld", bad, long(at), long(n));
          x[at] = -3e38f;
        }
      }
    });
  }
  EXPECT(AllFinite(Serial(), nullptr, 0), "nothing");
}

// Sizes of tensors, with empty ones, whose cuts fall inside, between and at the ends of tensors.
const std::vector<std::vector<int64_t>> kLists = {{0},
                                                  {0, 0, 5, 0},
                                                  {1, kGrain - 1, 1},
                                                  {kGrain, kGrain},
                                                  {kGrain + 1, 31, 2 * kGrain - 40, 7},
                                                  std::vector<int64_t>(300, 1000)};

void TestEachStretchOnce() {
  for (const std::vector<int64_t>& sizes : kLists) {
    for (const int64_t multiple : {int64_t{1}, int64_t{32}, int64_t{511}, 3 * kGrain}) {
      const Threads executor(3);
      std::vector<std::vector<std::atomic<int>>> seen;
      for (const int64_t size : sizes) seen.emplace_back(size);
      std::atomic<bool> placed{true};
      ListLoop(sizes).For(executor, CutAt{multiple}, [&](size_t i, int64_t begin, int64_t end) {
        if (begin % multiple || (end % multiple && end != sizes[i]) || begin >= end) placed = false;
        for (int64_t j = begin; j < end; ++j) ++seen[i][j];
      });
      bool once = placed;
      for (const auto& tensor : seen) {
        for (const auto& count : tensor) once &= count == 1;
      }
      EXPECT(once, "%d tensors, cut at %ld", int(sizes.size()), long(multiple));
    }
  }
}

void TestOneBadElementInAList() {
  for (const std::vector<int64_t>& sizes : kLists) {
    std::vector<std::vector<float>> xs;
    std::vector<Floats> list;
    for (const int64_t size : sizes) xs.emplace_back(size, -3e38f);
    for (const auto& x : xs) list.push_back({x.data(), int64_t(x.size())});
    OnEveryIsa([&](const Executor& executor) {
      EXPECT(AllFinite(executor, list), "%d tensors", int(sizes.size()));
      for (size_t i : {size_t{0}, xs.size() / 2, xs.size() - 1}) {
        if (xs[i].empty()) continue;
        xs[i].back() = NAN;
        EXPECT(!AllFinite(executor, list), "%d of %d tensors", int(i), int(sizes.size()));
        xs[i].back() = 3e38f;
      }
    });
  }
}

}  // namespace grace

int main() {
  grace::TestEachStretchOnce();
  grace::TestOneBadElementInAList();
  grace::TestOneBadElementAnywhere();
  return grace::Finish("finite");
}
