#include <numeric>
#include <string>

#include "device.h"
#include "kernels/sparse/scatter_list.h"

namespace grace {

// What so many workers send of some tensors, in guarded memory.
struct Sent {
  std::vector<int64_t> lengths, ks;
  int64_t workers, size = 0;
  Guarded<float> values;
  Guarded<int32_t> indices, counts;

  static int64_t Size(const std::vector<int64_t>& ks) {
    return std::accumulate(ks.begin(), ks.end(), int64_t{0});
  }

  Sent(const std::vector<int64_t>& own_lengths, const std::vector<int64_t>& own_ks,
       int64_t own_workers, Kind kind)
      : lengths(own_lengths),
        ks(own_ks),
        workers(own_workers),
        size(Size(ks)),
        values(Values(kind, workers * size, 3), 1),
        indices(workers * size, 3),
        counts(workers * int64_t(ks.size()), 1) {
    std::mt19937 random(uint32_t(size + workers));
    int32_t* at = indices.data();
    for (int64_t w = 0; w < workers; ++w) {
      for (size_t i = 0; i < ks.size(); ++i) {
        // Strictly ascending: a random place in each of k parts of equal size.
        for (int64_t j = 0; j < ks[i]; ++j) {
          const int64_t low = j * lengths[i] / ks[i], high = (j + 1) * lengths[i] / ks[i];
          *at++ = int32_t(low + random() % (high - low));
        }
        counts[w * int64_t(ks.size()) + int64_t(i)] = int32_t(random() % (ks[i] + 3)) - 1;
      }
    }
  }
};

std::string Told(const Guarded<int32_t>& fault, const std::vector<int64_t>& lengths) {
  const int32_t* own = fault.data();
  const std::string tensor = "tensor " + std::to_string(own[1]) + " of the list";
  if (!fault.Intact()) return "guards";
  if (own[0] == 0) return {};
  if (own[0] == 2) return "A worker's indices into " + tensor + " do not ascend strictly.";
  return "Index " + std::to_string(own[2]) + " is outside " + tensor + ", which has " +
         std::to_string(lengths[own[1]]) + " elements.";
}

// All orders of threads for some lists, one in turn for the others: emulation takes long.
template <class Body>
void OnOrders(const Sent& sent, const Body& body) {
  const int64_t n = sent.lengths[0];
  if ((n > 2000 && n <= 1 << 14) || n == 40) return OnEveryOrder(body);
  static int turn = 0;
  OnOneOrder(turn++, body);
}

void CheckScatter(const Sent& sent, bool counted, float factor) {
  const DeviceList theirs(sent.lengths), ours(sent.lengths);
  const int32_t* counts = counted ? sent.counts.data() : nullptr;
  const Entries entries{sent.values.data(), sent.indices.data(), counts, sent.workers, sent.ks};
  bool finite = true;
  const std::string wanted = ScatterList(Serial(), theirs.Targets(), entries, factor, &finite);
  const std::vector<DecodeOutput> targets = ours.Targets();
  const int n = int(sent.lengths[0]);
  OnOrders(sent, [&](const char* order) {
    Guarded<bool> flag(1);
    Guarded<int32_t> fault(3);
    ours.Spoil();
    Launched(grace_cuda_scatter_list, targets.data(), int64_t(targets.size()), sent.values.data(),
             sent.indices.data(), counts, sent.workers, sent.ks.data(), factor, flag.data(),
             fault.data());
    const std::string told = Told(fault, sent.lengths);
    EXPECT(told == wanted, "%s, n = %d: '%s', not '%s'", order, n, told.c_str(), wanted.c_str());
    if (!wanted.empty()) return;
    EXPECT(flag[0] == finite && flag.Intact(), "%s, n = %d", order, n);
    EXPECT(ours.Equals(theirs), "%s, n = %d, %d workers", order, n, int(sent.workers));
  });
  const std::string checked = IndexFault(Serial(), sent.lengths, entries);
  OnOrders(sent, [&](const char* order) {
    Guarded<int32_t> fault(3);
    Launched(grace_cuda_index_fault, sent.lengths.data(), int64_t(sent.lengths.size()),
             sent.indices.data(), counts, sent.workers, sent.ks.data(), fault.data());
    EXPECT(Told(fault, sent.lengths) == checked, "%s, n = %d: not '%s'", order, n, checked.c_str());
  });
}

void CheckRefine(const Sent& sent, Kind kind) {
  const DeviceList theirs(sent.lengths, kind, 4);
  const Guarded<float> decoded(Values(kind, sent.size, 5), 2);
  const std::string wanted = RefineList(Serial(), theirs.Targets(), sent.indices.data(),
                                        sent.values.data(), decoded.data(), sent.ks);
  OnOrders(sent, [&](const char* order) {
    const DeviceList ours(sent.lengths, kind, 4);
    const std::vector<DecodeOutput> targets = ours.Targets();
    Guarded<int32_t> fault(3);
    Launched(grace_cuda_refine_list, targets.data(), int64_t(targets.size()), sent.indices.data(),
             sent.values.data(), decoded.data(), sent.ks.data(), fault.data());
    EXPECT(Told(fault, sent.lengths) == wanted, "%s: not '%s'", order, wanted.c_str());
    if (wanted.empty()) EXPECT(ours.Equals(theirs), "%s, n = %d", order, int(sent.lengths[0]));
  });
}

// A few of the entries become wrong: out of range, out of order, or twice the same.
void CheckFaults() {
  std::mt19937 random(9);
  for (int turn = 0; turn < 100; ++turn) {
    const int64_t workers = 1 + turn % 3;
    Sent sent({40, 9000, 1, 300, 20000}, {20, 900, 1, 100, 3000}, workers, Kind::kGradient);
    for (int i = 0; i < 1 + turn % 4; ++i) {
      int32_t& index = sent.indices[random() % (workers * sent.size)];
      const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, 9000, index - 40, 20, 0};
      index = wrong[random() % 7];
    }
    CheckScatter(sent, turn % 5 == 0, 1.0f);
    CheckRefine(sent, Kind::kGradient);
  }
}

}  // namespace grace

int main() {
  using namespace grace;
  int turn = 0;
  OnEveryCorner([&](const std::vector<int64_t>& lengths, Kind kind) {
    ++turn;
    std::vector<int64_t> ks;
    for (const int64_t n : lengths) {
      ks.push_back(turn % 3 == 0 ? n : turn % 3 == 1 ? CeilDiv(n, 3) : CeilDiv(n, 50));
    }
    const int64_t workers = turn % 50 == 7 ? 150 : 1 + turn % 4;
    const Sent sent(lengths, ks, workers, kind);
    CheckScatter(sent, turn % 2, turn % 5 ? 0.25f : 1.0f);
    CheckRefine(sent, kind);
  });
  CheckFaults();
  return Finish("cuda_scatter_list_test");
}
