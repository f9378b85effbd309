#include "device.h"
#include "kernels/codes/size_classes.h"

namespace grace {

// A payload of a list for some workers, each part between guards.
struct Payload {
  Payload(const ClassLengths& row, int64_t workers)
      : lengths(row),
        tags(workers * row.tags),
        numbers(workers * row.numbers),
        counts(workers * row.counts) {}
  void Spoil() const {
    tags.Spoil();
    numbers.Spoil();
    counts.Spoil();
  }
  ClassParts parts() const { return {tags.data(), numbers.data(), counts.data()}; }
  bool Equals(const Payload& other) const {
    return SameBytes(tags, other.tags, lengths.tags) &&
           SameBytes(numbers, other.numbers, lengths.numbers) &&
           SameBytes(counts, other.counts, lengths.counts);
  }

  ClassLengths lengths;
  Guarded<uint32_t> tags, numbers;
  Guarded<int32_t> counts;
};

// Room for everything, for little, or for next to nothing.
std::vector<Room> RoomsOf(const std::vector<int64_t>& lengths, int turn) {
  std::vector<Room> rooms;
  for (const int64_t n : lengths) {
    const int64_t share = turn % 3 == 0 ? 1 : turn % 3 == 1 ? 20 : 1000;
    rooms.push_back({n / share + 1, n / (3 * share) + turn % 2});
  }
  return rooms;
}

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, int32_t bound, float multiplier,
                 int turn) {
  const bool keep = turn % 4 < 2, in_place = turn % 8 < 4;
  const std::vector<Room> rooms = RoomsOf(lengths, turn);
  const ClassLengths row = ClassPlaces(lengths, rooms).back();
  const Payload theirs(row, 1), ours(row, 1);
  const uint64_t step = turn * 12345678901u;
  const Gradients expected(lengths, kind, keep, in_place);
  const bool finite =
      EncodeClasses(Serial(), expected.sources, multiplier, bound, rooms, step, theirs.parts());
  OnEveryOrder([&](const char* order) {
    const Gradients given(lengths, kind, keep, in_place);
    const std::vector<EncodeInput>& list = given.sources;
    ours.Spoil();
    const ClassParts parts = ours.parts();
    Guarded<bool> flag(1);
    Launched(grace_cuda_encode_classes, list.data(), int64_t(list.size()), multiplier, bound,
             rooms.data(), step, &parts, flag.data());
    const int n = static_cast<int>(lengths[0]);
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, bound %d", order, n, bound);
    if (!finite) return;  // the sign of NaN is anything, and so are the numbers
    EXPECT(ours.Equals(theirs), "%s, n = %d, bound %d, turn %d", order, n, bound, turn);
    EXPECT(given.SameKept(expected), "%s, n = %d, bound %d, turn %d", order, n, bound, turn);
  });
}

// Any bits are taken.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, float factor, int turn) {
  const int64_t workers = 1 + turn % 3;
  const std::vector<Room> rooms = RoomsOf(lengths, turn);
  const ClassLengths row = ClassPlaces(lengths, rooms).back();
  const Payload payload(row, workers);
  std::mt19937 random(turn);
  const auto fill = [&](const Guarded<uint32_t>& words, int64_t n) {
    for (int64_t i = 0; i < n; ++i) words.data()[i] = random();
  };
  fill(payload.tags, workers * row.tags);
  fill(payload.numbers, workers * row.numbers);
  const std::vector<float> wholes = Values(kind, workers * row.numbers / 2, 3);
  for (size_t i = 0; i < wholes.size(); ++i) payload.numbers.data()[2 * i] = BitsOf(wholes[i]);
  for (int64_t i = 0; i < workers * row.counts; ++i) {
    payload.counts.data()[i] = static_cast<int32_t>(random() % (turn % 2 ? 300 : 10000)) - 20;
  }
  const DeviceList theirs(lengths), ours(lengths);
  const ClassParts parts = payload.parts();
  const bool finite = DecodeClasses(Serial(), theirs.Targets(), rooms, parts, workers, factor);
  const std::vector<DecodeOutput> list = ours.Targets();
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_classes, list.data(), int64_t(list.size()), rooms.data(), &parts,
             workers, factor, flag.data());
    const int n = static_cast<int>(lengths[0]);
    EXPECT(flag[0] == finite, "%s, n = %d, turn %d", order, n, turn);
    EXPECT(ours.Equals(theirs), "%s, n = %d, turn %d", order, n, turn);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  constexpr int32_t kBounds[] = {10, 1, 100, 7, 15, 16, 3};
  int turn = 0;
  OnMostCorners([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    if (kFewCases && turn % 3 && lengths[0] < 2000) return;
    CheckEncode(lengths, kind, kBounds[turn % 7], turn % 2 ? 1.0f : 0.3f, turn);
    if (kFewCases && turn % 2 == 0) return;
    CheckDecode(lengths, kind, turn % 3 ? 0.25f : -3.0f, turn);
  });
  // More chunks than a block counts, and than a thread of it sums.
  CheckEncode({(1 << 18) + 3}, Kind::kGradient, 10, 1.0f, 5);
  CheckDecode({(1 << 18) + 3}, Kind::kGradient, 1.0f, 5);
  return Finish("cuda_size_classes_test");
}
