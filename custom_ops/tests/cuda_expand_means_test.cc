#include "device.h"
#include "kernels/select/two_means.h"

namespace grace {

void CheckExpand(const std::vector<int64_t>& ks, int64_t workers) {
  const int64_t tensors = ks.size();
  int64_t size = 0, entries = 0;
  for (const int64_t k : ks) size += PackedWords(k, 1), entries += k;
  const Guarded<float> means(Values(Kind::kAnyBits, 2 * workers * tensors, 1));
  const Guarded<uint32_t> signs(workers * size);
  std::mt19937 random(5);
  for (int64_t i = 0; i < workers * size; ++i) signs.data()[i] = random();
  const Guarded<float> theirs(workers * entries), ours(workers * entries);
  ExpandMeans(Serial(), means.data(), signs.data(), workers, ks, theirs.data());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_expand_means, means.data(), signs.data(), workers, ks.data(), tensors,
             ours.data());
    EXPECT(SameBytes(ours, theirs, workers * entries), "%s, k = %d", order, int(ks[0]));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryCorner([&](const std::vector<int64_t>& ks, Kind) { CheckExpand(ks, 1 + turn++ % 4); });
  return Finish("cuda_expand_means_test");
}
