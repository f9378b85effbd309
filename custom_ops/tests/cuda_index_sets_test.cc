#include <string>

#include "device.h"
#include "kernels/sparse/index_sets.h"

namespace grace {

// k ascending numbers below n.
std::vector<int32_t> AscendingBelow(int64_t n, int64_t k, std::mt19937& random) {
  std::vector<int32_t> indices;
  for (int64_t i = 0, left = k; i < n && left > 0; ++i) {
    if (static_cast<int64_t>(random() % (n - i)) < left) {
      indices.push_back(static_cast<int32_t>(i));
      --left;
    }
  }
  return indices;
}

// The sentence that the numbers of a fault stand for.
std::string Sentence(const int32_t* fault, const std::vector<int64_t>& lengths) {
  if (fault[0] == 0) return {};
  const std::string of = "tensor " + std::to_string(fault[1]) + " of the list";
  if (fault[0] == 2) return "A worker's indices into " + of + " do not ascend strictly.";
  return "Index " + std::to_string(fault[2]) + " is outside " + of + ", which has " +
         std::to_string(lengths[fault[1]]) + " elements.";
}

struct Sets {
  Sets(const std::vector<int64_t>& lengths, int turn, int64_t workers)
      : ks(KsOf(lengths, turn)),
        layouts(lengths, ks),
        indices(workers * layouts.entries.back()),
        counts(workers * lengths.size()),
        words(workers * layouts.words.back()) {
    std::mt19937 random(turn);
    for (int64_t w = 0; w < workers; ++w) {
      for (size_t i = 0; i < ks.size(); ++i) {
        const auto own = AscendingBelow(lengths[i], ks[i], random);
        std::copy(own.begin(), own.end(),
                  indices.data() + w * layouts.entries.back() + layouts.entries[i]);
        counts.data()[w * ks.size() + i] = static_cast<int32_t>(random() % (ks[i] + 3)) - 1;
      }
    }
  }
  static std::vector<int64_t> KsOf(const std::vector<int64_t>& lengths, int turn) {
    constexpr int64_t kShares[] = {100, 1, 40, 7, 1000000, 10};
    std::vector<int64_t> ks;
    for (const int64_t n : lengths) ks.push_back(std::max<int64_t>(1, n / kShares[turn % 6]));
    return ks;
  }

  std::vector<int64_t> ks;
  IndexLayouts layouts;
  Guarded<int32_t> indices, counts;
  Guarded<uint32_t> words;
};

void CheckPack(const std::vector<int64_t>& lengths, const Sets& sets, bool counted) {
  const int64_t size = sets.layouts.words.back(), tensors = lengths.size();
  const int32_t* counts = counted ? sets.counts.data() : nullptr;
  const Guarded<uint32_t> ours(size);
  const std::string wrong =
      PackIndexList(Serial(), sets.layouts, sets.indices.data(), counts, sets.words.data());
  OnEveryOrder([&](const char* order) {
    const Guarded<int32_t> fault(3);
    ours.Spoil();
    Launched(grace_cuda_pack_index_list, sets.layouts.each.data(), tensors, sets.indices.data(),
             counts, ours.data(), fault.data());
    EXPECT(Sentence(fault.data(), lengths) == wrong, "%s, not %s",
           Sentence(fault.data(), lengths).c_str(), wrong.c_str());
    EXPECT(!wrong.empty() || SameBytes(ours, sets.words, size), "%s, n = %d, k = %d", order,
           int(lengths[0]), int(sets.ks[0]));
  });
}

void CheckUnpack(const std::vector<int64_t>& lengths, const Sets& sets, int64_t workers) {
  const int64_t entries = workers * sets.layouts.entries.back(), tensors = lengths.size();
  const Guarded<int32_t> theirs(entries), ours(entries);
  UnpackIndexList(Serial(), sets.layouts, sets.words.data(), workers, theirs.data());
  OnEveryOrder([&](const char* order) {
    ours.Spoil();
    Launched(grace_cuda_unpack_index_list, sets.layouts.each.data(), tensors, sets.words.data(),
             workers, ours.data());
    EXPECT(SameBytes(ours, theirs, entries), "%s, n = %d, k = %d", order, int(lengths[0]),
           int(sets.ks[0]));
  });
}

void CheckScatter(const std::vector<int64_t>& lengths, const Sets& sets, int64_t workers,
                  bool counted) {
  const int64_t tensors = lengths.size();
  const Guarded<float> values(Values(Kind::kSpecial, workers * sets.layouts.entries.back(), 1));
  const SetEntries entries{values.data(), sets.words.data(), counted ? sets.counts.data() : nullptr,
                           workers};
  const DeviceList theirs(lengths), ours(lengths);
  bool finite = true;
  const std::string wrong =
      ScatterSetList(Serial(), theirs.Targets(), sets.layouts, entries, 0.3f, &finite);
  const std::vector<DecodeOutput> list = ours.Targets();
  OnEveryOrder([&](const char* order) {
    const Guarded<int32_t> fault(3);
    Guarded<bool> flag(1);
    ours.Spoil();
    Launched(grace_cuda_scatter_set_list, list.data(), tensors, sets.layouts.each.data(), &entries,
             0.3f, flag.data(), fault.data());
    EXPECT(Sentence(fault.data(), lengths) == wrong, "%s, not %s",
           Sentence(fault.data(), lengths).c_str(), wrong.c_str());
    EXPECT(!wrong.empty() || (flag[0] == finite && ours.Equals(theirs)), "%s, n = %d, k = %d",
           order, int(lengths[0]), int(sets.ks[0]));
  });
}

// What a worker packed, for all workers; then any bits.
void Check(const std::vector<int64_t>& lengths, int turn) {
  const int64_t workers = 1 + turn % 3;
  const Sets sets(lengths, turn, workers);
  CheckPack(lengths, sets, turn % 2);
  const int64_t size = sets.layouts.words.back();
  for (int64_t w = 1; w < workers; ++w) {
    PackIndexList(Serial(), sets.layouts, sets.indices.data() + w * sets.layouts.entries.back(),
                  nullptr, sets.words.data() + w * size);
  }
  CheckUnpack(lengths, sets, workers);
  CheckScatter(lengths, sets, workers, turn % 2);
  std::mt19937 random(turn);
  for (int64_t i = 0; i < workers * size; ++i) sets.words.data()[i] = random();
  CheckUnpack(lengths, sets, workers);
  CheckScatter(lengths, sets, workers, turn % 2);
  // Something is wrong with an index.
  sets.indices.data()[random() % sets.layouts.entries.back()] = static_cast<int32_t>(random() % 9);
  CheckPack(lengths, sets, false);
  sets.indices.data()[random() % sets.layouts.entries.back()] = random() % 2 ? -1 : INT32_MAX;
  CheckPack(lengths, sets, false);
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnMostCorners(
      [&](const std::vector<int64_t>& lengths, Kind) {
        ++turn;
        if (!kFewCases) return Check(lengths, turn);
        if (turn % 8 == 0 || lengths[0] > 2000) Check(lengths, turn / 8);
      },
      1);
  // More words than a block takes.
  for (int own = 0; own < 3; ++own) Check({5, 20000, 1}, own);
  return Finish("cuda_index_sets_test");
}
