#include "../kernels/finite.h"

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

}  // namespace grace

int main() {
  grace::TestOneBadElementAnywhere();
  return grace::Finish("finite");
}
