#include "device.h"
#include "kernels/codes/size_classes.h"

namespace grace {

// A payload of a list for some workers, each part between guards.
struct Payload {
  Payload(const ClassLengths& row, int64_t workers)
      : lengths(row),
        tags(workers * row.tags),
        bytes(workers * row.bytes),
        halves(workers * row.halves),
        wholes(workers * row.wholes),
        counts(workers * row.counts) {}
  void Spoil() const {
    tags.Spoil();
    bytes.Spoil();
    halves.Spoil();
    wholes.Spoil();
    counts.Spoil();
  }
  ClassParts parts() const {
    return {tags.data(), bytes.data(), halves.data(), wholes.data(), counts.data()};
  }
  bool Equals(const Payload& other) const {
    return SameBytes(tags, other.tags, lengths.tags) &&
           SameBytes(bytes, other.bytes, lengths.bytes) &&
           SameBytes(halves, other.halves, lengths.halves) &&
           SameFloats(wholes, other.wholes, lengths.wholes) &&
           SameBytes(counts, other.counts, lengths.counts);
  }

  ClassLengths lengths;
  Guarded<uint32_t> tags, bytes, halves;
  Guarded<float> wholes;
  Guarded<int32_t> counts;
};

// Room for everything, for little, or for next to nothing.
std::vector<Room> RoomsOf(const std::vector<int64_t>& lengths, int turn) {
  std::vector<Room> rooms;
  for (const int64_t n : lengths) {
    const int64_t share = turn % 3 == 0 ? 1 : turn % 3 == 1 ? 20 : 1000;
    rooms.push_back({n / share + turn % 2, n / (2 * share), n / (3 * share) + turn % 2});
  }
  return rooms;
}

void CheckEncode(const std::vector<int64_t>& lengths, Kind kind, ErrorBound bound, float multiplier,
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
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d, bound %d", order, n, bound.b);
    if (!finite) return;  // the sign of NaN is anything, and so are the numbers
    EXPECT(ours.Equals(theirs), "%s, n = %d, bound %d, turn %d", order, n, bound.b, turn);
    EXPECT(given.SameKept(expected), "%s, n = %d, bound %d, turn %d", order, n, bound.b, turn);
  });
}

// Any bits are taken.
void CheckDecode(const std::vector<int64_t>& lengths, Kind kind, ErrorBound bound, float factor,
                 int turn) {
  const int64_t workers = 1 + turn % 3;
  const std::vector<Room> rooms = RoomsOf(lengths, turn);
  const ClassLengths row = ClassPlaces(lengths, rooms).back();
  const Payload payload(row, workers);
  std::mt19937 random(turn);
  const auto fill = [&](const Guarded<uint32_t>& words, int64_t n) {
    for (int64_t i = 0; i < n; ++i) words.data()[i] = random();
  };
  fill(payload.tags, workers * row.tags);
  fill(payload.bytes, workers * row.bytes);
  fill(payload.halves, workers * row.halves);
  const std::vector<float> wholes = Values(kind, workers * row.wholes, 3);
  std::copy(wholes.begin(), wholes.end(), payload.wholes.data());
  for (int64_t i = 0; i < workers * row.counts; ++i) {
    payload.counts.data()[i] = static_cast<int32_t>(random() % 300) - 20;
  }
  const DeviceList theirs(lengths), ours(lengths);
  const ClassParts parts = payload.parts();
  const bool finite =
      DecodeClasses(Serial(), theirs.Targets(), bound, rooms, parts, workers, factor);
  const std::vector<DecodeOutput> list = ours.Targets();
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Guarded<bool> flag(1);
    Launched(grace_cuda_decode_classes, list.data(), int64_t(list.size()), bound, rooms.data(),
             &parts, workers, factor, flag.data());
    const int n = static_cast<int>(lengths[0]);
    EXPECT(flag[0] == finite, "%s, n = %d, bound %d", order, n, bound.b);
    EXPECT(ours.Equals(theirs), "%s, n = %d, bound %d, turn %d", order, n, bound.b, turn);
  });
}

}  // namespace grace

int main() {
  using namespace grace;
  constexpr int32_t kBounds[] = {10, 1, 100, 7, 15, 16, 3};
  int turn = 0;
  OnMostCorners([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    if (kEmulated && turn % 3 && lengths[0] < 2000) return;
    const ErrorBound bound{kBounds[turn % 7]};
    CheckEncode(lengths, kind, bound, turn % 2 ? 1.0f : 0.3f, turn);
    if (kEmulated && turn % 2 == 0) return;
    CheckDecode(lengths, kind, bound, turn % 3 ? 0.25f : -3.0f, turn);
  });
  // More chunks than a block counts, and than a thread of it sums.
  CheckEncode({(1 << 18) + 3}, Kind::kGradient, {10}, 1.0f, 5);
  CheckDecode({(1 << 18) + 3}, Kind::kGradient, {10}, 1.0f, 5);
  return Finish("cuda_size_classes_test");
}
