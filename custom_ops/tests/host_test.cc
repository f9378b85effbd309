#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "kernels/host/host_queue.h"
#include "testing.h"

namespace grace {
namespace {

// Stands for the processes of one host: each is a thread of this test.
// All threads use one segment, in ordinary memory, and each has a queue of its own.
class Host {
 public:
  explicit Host(int places)
      : memory_(Segment::Bytes(places) / kHostFirstPage + 1), places_(places) {
    auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    begin = (begin + kHostFirstPage - 1) / kHostFirstPage * kHostFirstPage;
    for (int place = 0; place < places; ++place) {
      queues_.push_back(
          std::make_unique<HostQueue>(Segment(reinterpret_cast<void*>(begin), places), place));
      threads_.emplace_back([queue = queues_.back().get()] { queue->Serve(); });
    }
  }
  ~Host() {
    queues_[0]->Stop();
    for (std::thread& thread : threads_) thread.join();
  }

  int places() const { return places_; }
  HostQueue& operator[](int place) { return *queues_[place]; }

 private:
  struct Page {
    char bytes[kHostFirstPage] = {};
  };
  std::vector<Page> memory_;
  int places_;
  std::vector<std::unique_ptr<HostQueue>> queues_;
  std::vector<std::thread> threads_;
};

// The result of one job, once the job has ended.
class Outcome {
 public:
  std::function<void(const HostFailure*)> Done() {
    return [this](const HostFailure* failure) {
      kind_ = failure ? failure->kind : -1;
      ended_.store(true, std::memory_order_release);
    };
  }
  // Waits until the job has ended.  Returns -1 if it succeeded, else its HostFailure::Kind.
  int Wait() const {
    while (!ended_.load(std::memory_order_acquire)) std::this_thread::yield();
    return kind_;
  }

 private:
  int kind_ = 0;
  std::atomic<bool> ended_{false};
};

template <class T>
using List = std::vector<std::vector<T>>;

template <class T>
HostJob SumOf(int64_t key, const List<T>& own, List<T>* sums, NumberType type, Outcome* outcome,
              Deadline deadline = Deadline::max()) {
  std::vector<Summand> list;
  int64_t bytes = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto n = static_cast<int64_t>(own[i].size());
    list.push_back({own[i].data(), (*sums)[i].data(), n});
    bytes += n * static_cast<int64_t>(sizeof(T));
  }
  const auto run = [list, type](HostCollectives& all, Deadline d) { all.Sum(list, type, d); };
  return {key, bytes, deadline, run, outcome->Done()};
}

template <class T>
List<T> Drawn(const std::vector<int64_t>& sizes, int seed) {
  List<T> list;
  for (const int64_t n : sizes) {
    list.emplace_back(n);
    for (int64_t j = 0; j < n; ++j) {
      list.back()[j] = static_cast<T>(std::ldexp((j * 2654435761u + seed) % 8191, seed - 10));
    }
  }
  return list;
}

const std::vector<std::vector<int64_t>> kLists = {
    {1}, {0, 3, 0, 64}, {kHostChunk / 4}, {100000, 1, 7, 300001}, {kHostChunk + 5, 3}};

// The expected sums: the lists of all places, added element by element in the order of places.
template <class T>
List<T> InOrder(const std::vector<List<T>>& lists) {
  List<T> sums = lists[0];
  for (size_t place = 1; place < lists.size(); ++place) {
    for (size_t i = 0; i < sums.size(); ++i) {
      for (size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += lists[place][i][j];
    }
  }
  return sums;
}

template <class T>
void TestSums(NumberType type, const char* name) {
  for (const int places : {2, 3, 5}) {
    Host host(places);
    for (size_t l = 0; l < kLists.size(); ++l) {
      std::vector<List<T>> lists;
      for (int place = 0; place < places; ++place) lists.push_back(Drawn<T>(kLists[l], place + 1));
      const List<T> wanted = InOrder(lists);
      for (const bool in_place : {false, true}) {
        std::vector<List<T>> sums = lists;
        std::vector<Outcome> outcomes(places);
        for (int place = 0; place < places; ++place) {
          const List<T>& own = in_place ? sums[place] : lists[place];
          host[place].Submit(SumOf(10 + int64_t(l), own, &sums[place], type, &outcomes[place]));
        }
        for (int place = 0; place < places; ++place) {
          EXPECT(outcomes[place].Wait() == -1, "%s, list %d", name, int(l));
          EXPECT(sums[place] == wanted, "%s, list %d, %d of %d places", name, int(l), place,
                 places);
        }
      }
    }
  }
}

float Rounded(float x) {  // to bfloat16, ties to even
  const uint32_t bits = BitsOf(x);
  return FloatOf((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

void TestNarrowSums() {
  Host host(3);
  const std::vector<int64_t> sizes = {5000, 70, kHostChunk};
  std::vector<List<float>> lists, sums(3);
  for (int place = 0; place < 3; ++place) lists.push_back(Drawn<float>(sizes, place + 1));
  std::vector<Outcome> outcomes(3);
  for (int place = 0; place < 3; ++place) {
    sums[place] = lists[place];
    host[place].Submit(
        SumOf(1, lists[place], &sums[place], NumberType::kFloatAsBfloat16, &outcomes[place]));
  }
  bool equal = true;
  for (int place = 0; place < 3; ++place) {
    EXPECT(outcomes[place].Wait() == -1, "narrow");
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (int64_t j = 0; j < sizes[i]; ++j) {
        float total = 0;
        for (const List<float>& list : lists) total += Rounded(list[i][j]);
        equal &= sums[place][i][j] == Rounded(total);
      }
    }
  }
  EXPECT(equal, "the sum of three bfloat16, rounded once");
}

void TestHalves() {
  // 1 + 2^-8 + 2^-8: added up in bfloat16, each term of 2^-8 would be lost.
  const uint16_t one = 0x3f80, small = 0x3b80;
  Host host(3);
  std::vector<List<uint16_t>> lists = {{{one}}, {{small}}, {{small}}}, sums = lists;
  std::vector<Outcome> outcomes(3);
  for (int place = 0; place < 3; ++place) {
    host[place].Submit(
        SumOf(1, lists[place], &sums[place], NumberType::kBfloat16, &outcomes[place]));
  }
  for (int place = 0; place < 3; ++place) {
    outcomes[place].Wait();
    EXPECT(sums[place][0][0] == 0x3f81, "%x", sums[place][0][0]);
  }
}

// Places have the collectives ready in another order each; place 0's counts.
void TestAnyOrder() {
  constexpr int kJobs = 12;
  Host host(3);
  const std::vector<int64_t> sizes = {3000, 17};
  std::vector<std::vector<List<int32_t>>> lists(kJobs), sums;
  for (int job = 0; job < kJobs; ++job) {
    for (int place = 0; place < 3; ++place) {
      lists[job].push_back(Drawn<int32_t>(sizes, 1 + (job + place) % 10));
    }
  }
  sums = lists;
  std::vector<std::vector<Outcome>> outcomes(kJobs);
  for (auto& each : outcomes) each = std::vector<Outcome>(3);
  std::vector<std::thread> callers;
  for (int place = 0; place < 3; ++place) {
    callers.emplace_back([&, place] {
      for (int i = 0; i < kJobs; ++i) {
        const int job = (i * (2 * place + 5) + place) % kJobs;  // 5, 7 and 9
        const int own = place == 2 ? kJobs - 1 - i : job;
        host[place].Submit(SumOf(100 + own, lists[own][place], &sums[own][place],
                                 NumberType::kInt32, &outcomes[own][place]));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int job = 0; job < kJobs; ++job) {
    const List<int32_t> wanted = InOrder(lists[job]);
    for (int place = 0; place < 3; ++place) {
      EXPECT(outcomes[job][place].Wait() == -1, "job %d", job);
      EXPECT(sums[job][place] == wanted, "job %d, place %d", job, place);
    }
  }
}

void TestJoins() {
  for (const int places : {2, 3}) {
    Host host(places);
    for (const int64_t rows : {1, 4}) {
      for (const int64_t n : {int64_t{3}, int64_t{1001}, kHostChunk / 2 + 3}) {
        std::vector<int64_t> begins = {0, n / 2, n, n};  // of three places the last has nothing
        begins.resize(places + 1);
        std::vector<uint32_t> whole(rows * n);
        for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<uint32_t>(i * 2654435761u);
        List<uint32_t> own(places), found(places, std::vector<uint32_t>(rows * n));
        std::vector<Outcome> outcomes(places);
        for (int place = 0; place < places; ++place) {
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t i = begins[place]; i < begins[place + 1]; ++i) {
              own[place].push_back(whole[row * n + i]);
            }
          }
          const Joined joined{own[place].data(), found[place].data(), rows, 4, begins};
          const auto run = [joined](HostCollectives& all, Deadline d) { all.Join(joined, d); };
          host[place].Submit({n, 4 * rows * n, Deadline::max(), run, outcomes[place].Done()});
        }
        for (int place = 0; place < places; ++place) {
          EXPECT(outcomes[place].Wait() == -1, "join");
          EXPECT(found[place] == whole, "%d x %d in %d places", int(rows), int(n), places);
        }
      }
    }
  }
}

void TestAStopEndsWhatWaits() {
  Host host(2);
  const List<float> own = Drawn<float>({kHostChunk * 2}, 1);
  List<float> sums = own;
  std::vector<Outcome> outcomes(3);
  host[0].Submit(SumOf(1, own, &sums, NumberType::kFloat, &outcomes[0]));  // waits for place 1
  host[1].Submit(SumOf(2, own, &sums, NumberType::kFloat, &outcomes[1]));  // waits for place 0
  host[1].Stop();
  EXPECT(outcomes[0].Wait() == HostFailure::kStopped, "in a collective");
  EXPECT(outcomes[1].Wait() == HostFailure::kStopped, "before a collective");
  host[0].Submit(SumOf(3, own, &sums, NumberType::kFloat, &outcomes[2]));
  EXPECT(outcomes[2].Wait() == HostFailure::kStopped, "afterwards");
}

void TestWaitingHasAnEnd() {
  for (const int late : {0, 1}) {
    Host host(2);
    const List<float> own = Drawn<float>({10}, 1);
    List<float> sums = own;
    Outcome outcome;
    host[late].Submit(
        SumOf(1, own, &sums, NumberType::kFloat, &outcome, std::chrono::steady_clock::now()));
    EXPECT(outcome.Wait() == HostFailure::kLate, "place %d", late);
  }
}

void TestOtherSizesAreRefused() {
  Host host(2);
  std::vector<List<float>> lists = {Drawn<float>({10}, 1), Drawn<float>({11}, 1)}, sums = lists;
  std::vector<Outcome> outcomes(2);
  for (const int place : {0, 1}) {
    host[place].Submit(SumOf(1, lists[place], &sums[place], NumberType::kFloat, &outcomes[place]));
  }
  EXPECT(outcomes[1].Wait() == HostFailure::kOther, "the other");
  EXPECT(outcomes[0].Wait() == HostFailure::kStopped, "the first");
}

// From just below 2^32 chunks on.
void TestCountersStartAnew() {
  const int places = 2;
  std::vector<char> memory(Segment::Bytes(places) + kHostFirstPage);
  auto begin = reinterpret_cast<uintptr_t>(memory.data());
  begin = (begin + kHostFirstPage - 1) / kHostFirstPage * kHostFirstPage;
  const Segment segment(reinterpret_cast<void*>(begin), places);
  const int64_t last = UINT32_MAX - 1;
  std::vector<std::thread> threads;
  std::vector<List<float>> lists, sums;
  for (int place = 0; place < places; ++place) {
    segment.progress(place).written.Raise(static_cast<uint32_t>(last));
    segment.progress(place).read.Raise(static_cast<uint32_t>(last));
    lists.push_back(Drawn<float>({kHostChunk}, place + 1));
  }
  sums = lists;
  for (int place = 0; place < places; ++place) {
    threads.emplace_back([&, place] {
      HostCollectives all(segment, place, last);
      const int64_t n = kHostChunk;
      all.Sum({{lists[place][0].data(), sums[place][0].data(), n}}, NumberType::kFloat,
              Deadline::max());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const List<float>& sum : sums) EXPECT(sum == InOrder(lists), "beyond 2^32 chunks");
}

}  // namespace
}  // namespace grace

int main() {
  using grace::NumberType;
  for (const char* isa : {"generic", "auto"}) {
    grace::SetIsa(isa);
    grace::TestSums<float>(NumberType::kFloat, "float");
    grace::TestNarrowSums();
    grace::TestHalves();
  }
  grace::TestSums<double>(NumberType::kDouble, "double");
  grace::TestSums<int32_t>(NumberType::kInt32, "int32");
  grace::TestSums<int64_t>(NumberType::kInt64, "int64");
  grace::TestAnyOrder();
  grace::TestJoins();
  grace::TestAStopEndsWhatWaits();
  grace::TestWaitingHasAnEnd();
  grace::TestOtherSizesAreRefused();
  grace::TestCountersStartAnew();
  return grace::Finish("host");
}
