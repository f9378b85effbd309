#include "device.h"
#include "kernels/codes/rotated_codes.h"

namespace grace {

constexpr int64_t kBlocks[] = {512, 32, 2048, 64, 128, 1024, 256};
const std::vector<float> kCentroids = {0.1f,  0.35f, 0.64f, 0.93f, 1.25f, 1.62f, 2.07f, 2.73f,
                                       2.8f,  2.85f, 2.9f,  2.95f, 3.0f,  3.1f,  3.2f,  3.3f,
                                       3.35f, 3.4f,  3.45f, 3.5f,  3.55f, 3.6f,  3.65f, 3.7f,
                                       3.72f, 3.74f, 3.76f, 3.78f, 3.8f,  3.82f, 3.84f, 3.86f};

// Of any of a few numbers of bits and sizes of blocks.
RotatedCode CodeOf(int turn) {
  const int bits = 1 + turn % 6;
  return {bits, bits <= 5 ? 64 : 1024, kBlocks[turn % 7], turn % 2 == 1, kCentroids};
}

std::vector<PhiloxKey> KeysOf(const std::vector<int64_t>& lengths) {
  std::vector<PhiloxKey> keys;
  for (size_t i = 0; i < lengths.size(); ++i) keys.push_back({1, 2, 3, uint32_t(i << 8)});
  return keys;
}

struct Rotated {
  Rotated(const std::vector<int64_t>& lengths, Kind kind, int turn)
      : code(CodeOf(turn)), given(lengths, kind, turn % 4 < 2, turn % 8 == 1) {
    for (const int64_t n : lengths) {
      words_size += code.WordsOf(n);
      scales_size += code.ScalesOf(n);
    }
    words = Guarded<uint32_t>(words_size, 1);
    scales = Guarded<float>(scales_size, 1);
  }
  bool Same(const Rotated& other) const {
    return SameBytes(words, other.words, words_size) && given.SameKept(other.given) &&
           SameFloats(scales, other.scales, scales_size);
  }

  RotatedCode code;
  Gradients given;
  int64_t words_size = 0, scales_size = 0;
  Guarded<uint32_t> words{0};
  Guarded<float> scales{0};
};

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const float multiplier = turn % 3 ? 1.0f : 0.3f;
  const std::vector<PhiloxKey> keys = KeysOf(lengths);
  const Rotated theirs(lengths, kind, turn);
  const bool finite = EncodeRotated(Serial(), theirs.given.sources, multiplier, keys, theirs.code,
                                    theirs.words.data(), theirs.scales.data());
  OnOneOrder(turn / 2, [&](const char* order) {
    const Rotated ours(lengths, kind, turn);
    Guarded<bool> flag(1);
    Launched(grace_cuda_encode_rotated, ours.given.sources.data(), int64_t(lengths.size()),
             multiplier, keys.data(), &ours.code, ours.words.data(), ours.scales.data(),
             flag.data());
    const int n = lengths[0];
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(ours.Same(theirs), "%s, n = %d, turn %d", order, n, turn);
  });
}

// Any codes and scales.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, int turn) {
  const RotatedCode code = CodeOf(turn);
  const int64_t workers = 1 + turn % 4, count = lengths.size();
  const std::vector<PhiloxKey> keys = KeysOf(lengths);
  const DeviceList theirs(lengths), ours(lengths);
  const std::vector<DecodeOutput> expected = theirs.Targets(), list = ours.Targets();
  int64_t words_size = 0, scales_size = 0;
  for (const int64_t n : lengths) {
    words_size += code.WordsOf(n);
    scales_size += code.ScalesOf(n);
  }
  const Guarded<uint32_t> words(workers * words_size, 1);
  std::mt19937 random(turn);
  for (int64_t i = 0; i < workers * words_size; ++i) words.data()[i] = random();
  const DeviceList scales({workers * scales_size}, kind, 3);
  const RotatedRows rows{words.data(), scales[0], workers};
  const float factor = turn % 3 ? 0.25f : 3e-20f;
  const bool finite = DecodeRotated(Serial(), expected, rows, keys, code, factor);
  OnOneOrder(turn / 2, [&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_rotated, list.data(), count, rows, keys.data(), &code, factor,
             flag.data());
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, int(lengths[0]));
    EXPECT(ours.Equals(theirs), "%s, n = %d, turn %d", order, int(lengths[0]), turn);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    const bool large = lengths[0] > 5000 || lengths.size() > 100;
    if (kFewCases && large && kind != Kind::kGradient) return;
    CheckEncode(lengths, kind, turn);
    CheckDecode(lengths, kind, turn);
  };
  OnMostCorners(check, 1);
  return Finish("cuda_rotated_codes_test");
}
