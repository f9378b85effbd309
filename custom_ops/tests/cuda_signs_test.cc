#include "device.h"
#include "kernels/signs/signs.h"

namespace grace {

void CheckPack(const std::vector<int64_t>& lengths, Kind kind, float multiplier, bool keep) {
  const DeviceList xs(lengths, kind, 1), residuals(DeviceList::Residuals(lengths, kind));
  int64_t size = 0;
  for (const int64_t n : lengths) size += PackedWords(n, 1);
  const Guarded<uint32_t> theirs(size), ours(size);
  std::vector<EncodeInput> list;
  for (size_t i = 0; i < lengths.size(); ++i) {
    list.push_back({xs[i], keep ? residuals[i] : nullptr, nullptr, lengths[i]});
  }
  const bool finite = PackSignsList(Serial(), list, multiplier, theirs.data());
  OnEveryOrder([&](const char* order) {
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_sign_list, list.data(), int64_t(list.size()), multiplier, ours.data(),
             flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(SameBytes(ours, theirs, size), "%s, n = %d", order, int(lengths[0]));
  });
}

void CheckVote(const std::vector<int64_t>& lengths, int64_t workers, float factor) {
  int64_t stride = 0;
  for (const int64_t n : lengths) stride += PackedWords(n, 1);
  const DeviceList theirs(lengths), ours(lengths);
  const std::vector<DecodeOutput> list = ours.Targets();
  const Guarded<uint32_t> words(workers * stride);
  std::mt19937 random(7);
  for (int64_t i = 0; i < workers * stride; ++i) words.data()[i] = random();
  VoteSignsList(Serial(), words.data(), workers, theirs.Targets(), factor);
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_vote_list, words.data(), workers, list.data(), int64_t(list.size()),
             factor);
    EXPECT(ours.Equals(theirs), "%s, n = %d, %d workers", order, int(lengths[0]), int(workers));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryCorner([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    CheckPack(lengths, kind, turn % 2 ? 1.0f : 0.3f, turn % 4 < 2);
    CheckVote(lengths, 1 + turn % 5, turn % 3 ? 0.25f : -3.0f);
  });
  return Finish("cuda_signs_test");
}
