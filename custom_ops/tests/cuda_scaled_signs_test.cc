#include "device.h"
#include "kernels/signs/scaled_signs.h"

namespace grace {

struct Code {
  int sides;
  int64_t block;
  bool by_column;
};
const Code kCodes[] = {{1, 0, false},    {2, 0, false},    {1, 32, false},    {2, 64, false},
                       {1, 128, false},  {2, 256, false},  {1, 512, false},   {2, 1024, false},
                       {1, 2048, false}, {2, 4096, false}, {1, 16384, false}, {2, 32, false},
                       {1, 0, true},     {2, 0, true}};

// The largest of some numbers of columns that fits.
int64_t ColumnsOf(int64_t n) {
  for (const int64_t columns : {2049, 130, 64, 17, 5, 3}) {
    if (n % columns == 0) return columns;
  }
  return 1;
}

struct Payload {
  Payload(int64_t size, int64_t levels) : words(size), low(levels), high(levels) {}
  void Spoil() const {
    words.Spoil();
    low.Spoil();
    high.Spoil();
  }
  Guarded<uint32_t> words;
  Guarded<float> low, high;
};

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, const Code& code, float multiplier,
                 bool keep, bool in_place) {
  std::vector<Cells> cells;
  int64_t size = 0, levels = 0;
  for (const int64_t n : lengths) {
    cells.push_back({code.block, code.by_column ? ColumnsOf(n) : 1});
    size += PackedWords(n, 1);
    levels += cells.back().Count(n);
  }
  const Payload theirs(size, levels), ours(size, levels);
  const auto parts = [&](const Payload& payload) {
    std::vector<ScaledSigns> list;
    int64_t words_at = 0, levels_at = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      list.push_back({payload.words.data() + words_at,
                      code.sides == 2 ? payload.low.data() + levels_at : nullptr,
                      payload.high.data() + levels_at});
      words_at += PackedWords(lengths[i], 1);
      levels_at += cells[i].Count(lengths[i]);
    }
    return list;
  };
  const Gradients expected(lengths, kind, keep, in_place);
  const bool finite = ScaledSignList(Serial(), expected.sources, multiplier, cells, parts(theirs));
  OnEveryOrder([&](const char* order) {
    const Gradients given(lengths, kind, keep, in_place);
    const std::vector<EncodeInput>& list = given.sources;
    const std::vector<ScaledSigns> own_parts = parts(ours);
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_scaled_sign_list, list.data(), int64_t(list.size()), multiplier,
             cells.data(), own_parts.data(), flag.data());
    const int n = static_cast<int>(lengths[0]), block = static_cast<int>(code.block);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, block %d", order, n, block);
    EXPECT(SameBytes(ours.words, theirs.words, size), "%s, n = %d, block %d", order, n, block);
    EXPECT(SameFloats(ours.high, theirs.high, levels), "%s, n = %d, block %d", order, n, block);
    EXPECT(code.sides == 1 || SameFloats(ours.low, theirs.low, levels), "%s, n = %d, block %d",
           order, n, block);
    EXPECT(given.SameKept(expected), "%s, n = %d, block %d, kind %d", order, n, block, int(kind));
  });
}

void CheckSum(const std::vector<int64_t>& lengths, const Code& code, int64_t workers, Kind kind,
              float factor) {
  std::vector<Cells> cells;
  int64_t size = 0, levels = 0;
  for (const int64_t n : lengths) {
    cells.push_back({code.block, code.by_column ? ColumnsOf(n) : 1});
    size += PackedWords(n, 1);
    levels += cells.back().Count(n);
  }
  const Guarded<uint32_t> words(workers * size);
  std::mt19937 random(7);
  for (int64_t i = 0; i < workers * size; ++i) words.data()[i] = random();
  const Guarded<float> low(Values(kind, workers * levels, 1));
  const Guarded<float> high(Values(kind, workers * levels, 2));
  const ScaledRows rows{
      words.data(), code.sides == 2 ? low.data() : nullptr, high.data(), workers, size, levels};
  const DeviceList theirs(lengths), ours(lengths);
  const bool finite = SumScaledSignList(Serial(), rows, cells, theirs.Targets(), factor);
  const std::vector<DecodeOutput> list = ours.Targets();
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_sum_scaled_sign_list, &rows, cells.data(), int64_t(list.size()),
             list.data(), factor, flag.data());
    EXPECT(flag[0] == finite, "%s, n = %d, block %d", order, int(lengths[0]), int(code.block));
    EXPECT(ours.Equals(theirs), "%s, n = %d, block %d", order, int(lengths[0]), int(code.block));
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  const auto check = [&](const std::vector<int64_t>& lengths, Kind kind, const Code& code) {
    ++turn;
    CheckEncode(lengths, kind, code, turn % 2 ? 1.0f : 0.3f, turn % 4 < 2, turn % 8 < 4);
    if (kFewCases && turn % 3) return;
    CheckSum(lengths, code, 1 + turn / 3 % 3, kind, turn % 2 ? 0.25f : -3.0f);
  };
  OnMostCorners([&](const std::vector<int64_t>& lengths, Kind kind) {
    check(lengths, kind, kCodes[turn % 14]);
  });
  // More chunks than a block has threads, and more bands of columns than a block joins at a time.
  CheckEncode({(1 << 19) + 2049}, Kind::kGradient, {1, 0, false}, 1.0f, false, false);
  CheckEncode({100 * 32 * 3 + 3, 0}, Kind::kGradient, {2, 0, true}, 0.3f, true, true);
  const std::vector<int64_t> many{0, 33 * 65, 1, 5000, 10 * 130, 2 * 2049, 300 * 17, 7 * 64};
  for (const Code& code : kCodes) check(many, turn % 2 ? Kind::kGradient : Kind::kAnyBits, code);
  return Finish("cuda_scaled_signs_test");
}
