#include "device.h"
#include "kernels/codes/byte_codes.h"

namespace grace {

constexpr int64_t kBlocks[] = {0, 32, 512, 96, 2048, 4096, 64, 1056, 2080};

struct Bytes {
  Bytes(const std::vector<int64_t>& lengths, Kind kind, int turn)
      : block(kBlocks[turn % 9]), given(lengths, kind, turn % 4 < 2, turn % 8 == 1) {
    for (const int64_t n : lengths) {
      words_size += ByteWords(n);
      if (n) blocks += CeilDiv(n, block ? block : n);
    }
    words = Guarded<uint32_t>(words_size, 1);
    scales.emplace_back(std::vector<int64_t>{blocks});
  }
  bool Same(const Bytes& other) const {
    return SameBytes(words, other.words, words_size) && given.SameKept(other.given);
  }

  int64_t block, words_size = 0, blocks = 0;
  Gradients given;
  Guarded<uint32_t> words{0};
  std::vector<DeviceList> scales;
};

void CheckTree(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const Bytes theirs(lengths, kind, turn);
  const float multiplier = turn % 3 ? 1.0f : 0.3f;
  const bool finite = EncodeTree(Serial(), theirs.given.sources, multiplier, theirs.block,
                                 theirs.words.data(), theirs.scales[0][0]);
  OnOneOrder(turn / 2, [&](const char* order) {
    const Bytes ours(lengths, kind, turn);
    Guarded<bool> flag(1);
    Launched(grace_cuda_encode_tree, ours.given.sources.data(), int64_t(lengths.size()), multiplier,
             ours.block, ours.words.data(), ours.scales[0][0], flag.data());
    const int n = lengths[0], block = ours.block;
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(ours.scales[0].Equals(theirs.scales[0]), "%s, n = %d, block %d", order, n, block);
    EXPECT(ours.Same(theirs), "%s, n = %d, block %d, turn %d", order, n, block, turn);
  });
}

void CheckPowers(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const Bytes theirs(lengths, kind, turn);
  const float multiplier = turn % 3 ? 1.0f : 0.3f;
  std::vector<PhiloxKey> keys;
  for (size_t i = 0; i < lengths.size(); ++i) keys.push_back({1, 2, 3, uint32_t(i << 8)});
  const bool finite =
      EncodePowers(Serial(), theirs.given.sources, multiplier, keys, theirs.words.data());
  OnOneOrder(turn / 2, [&](const char* order) {
    const Bytes ours(lengths, kind, turn);
    Guarded<bool> flag(1);
    Launched(grace_cuda_encode_powers, ours.given.sources.data(), int64_t(lengths.size()),
             multiplier, keys.data(), ours.words.data(), flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Same(theirs), "%s, n = %d, turn %d", order, int(lengths[0]), turn);
  });
}

// Any codes and scales.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const int64_t workers = 1 + turn % 4, count = lengths.size(), block = kBlocks[turn % 9];
  const DeviceList theirs(lengths), ours(lengths);
  const std::vector<DecodeOutput> expected = theirs.Targets(), list = ours.Targets();
  int64_t words_size = 0, scales_size = 0;
  for (int64_t i = 0; i < count; ++i) {
    words_size += ByteWords(lengths[i]);
    scales_size += CeilDiv(lengths[i], block ? block : lengths[i]);
  }
  const Guarded<uint32_t> words(workers * words_size, 1);
  std::mt19937 random(turn);
  for (int64_t i = 0; i < workers * words_size; ++i) words.data()[i] = random();
  const DeviceList scales({workers * scales_size}, kind, 3);
  const ByteRows rows{words.data(), scales[0], workers};
  const float factor = turn % 3 ? 0.25f : 3e-20f;
  const bool finite = DecodeTree(Serial(), expected, rows, block, factor);
  OnOneOrder(turn / 2, [&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_tree, list.data(), count, rows, block, factor, flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, n = %d, block %d", order, int(lengths[0]), int(block));
  });
  const bool bounded = DecodePowers(Serial(), expected, rows, factor);
  OnOneOrder(turn / 2, [&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_powers, list.data(), count, rows, factor, flag.data());
    EXPECT(flag[0] == bounded && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, n = %d, powers", order, int(lengths[0]));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    const bool encoded = !kFewCases || lengths[0] < 100000;
    if (encoded) CheckTree(lengths, kind, turn);
    if (encoded) CheckPowers(lengths, kind, turn);
    CheckDecode(lengths, kind, turn);
  };
  OnEveryCorner(check, 1);
  for (int i = 0; i < 36; ++i) check({4099 + 61 * i, 1, 40}, Kind::kGradient);
  return Finish("cuda_byte_codes_test");
}
