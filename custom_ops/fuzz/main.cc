// Feeds every decoder random words, indices, counts and scales, until something is wrong.
//
//   fuzz_decoders [DECODES [FIRST_SEED [PROCESSES]]]
//
// Case after case: seeds from FIRST_SEED on, dealt out to the processes, until so many decodes were
// run in all. At the first fault all stop, and the case's seed is told.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "case.h"

namespace grace {
namespace {

std::vector<Decoder> AllDecoders() {
  std::vector<Decoder> all;
  for (const auto& some : {CodeDecoders(), SparseDecoders(), MatrixDecoders()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// What all processes read and write: the decodes of each decoder and of all, and the seed that each
// process is at, which tells the case that ended it, however that was.
struct Shared {
  int64_t all;
  int64_t each[64];
  uint32_t seeds[64];
};

Shared* MakeShared() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::perror("mmap"), std::exit(2);
  return static_cast<Shared*>(memory);
}

int64_t Add(int64_t* count, int64_t more) {
  return __atomic_add_fetch(count, more, __ATOMIC_RELAXED);
}

// Runs every `step`-th case from *seed on. Returns whether all of them were right.
bool RunCases(const std::vector<Decoder>& decoders, int64_t decodes, int64_t step, uint32_t* seed,
              Shared* shared) {
  for (int64_t done = 0; done < decodes; *seed += static_cast<uint32_t>(step)) {
    const size_t which = *seed % decoders.size();
    Case own(*seed);
    decoders[which].fuzz(&own);
    if (g_failures) return false;
    Add(&shared->each[which], own.decodes());
    done = Add(&shared->all, own.decodes());
  }
  return true;
}

// Waits for all processes. Returns whether they ended well; at the first that does not, its seed is
// told and the others are ended.
bool AllEndWell(const std::vector<pid_t>& processes, const std::vector<Decoder>& decoders,
                const Shared& shared) {
  bool well = true;
  for (size_t ended = 0; ended < processes.size(); ++ended) {
    int status;
    const pid_t process = wait(&status);
    if (!well || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    well = false;
    const size_t i = std::find(processes.begin(), processes.end(), process) - processes.begin();
    const uint32_t seed = shared.seeds[i];
    std::printf("fuzz: seed %u fails in %s; `fuzz_decoders 1 %u` runs this case alone\n", seed,
                decoders[seed % decoders.size()].name, seed);
    for (const pid_t other : processes) {
      if (other != process) kill(other, SIGTERM);
    }
  }
  return well;
}

int Main(int64_t decodes, uint32_t seed, int64_t count) {
  const std::vector<Decoder> decoders = AllDecoders();
  Shared* shared = MakeShared();
  std::vector<pid_t> processes;
  for (int64_t i = 0; i < count; ++i) {
    shared->seeds[i] = seed + static_cast<uint32_t>(i);
    processes.push_back(fork());
    if (processes.back() < 0) std::perror("fork"), std::exit(2);
    if (processes.back() > 0) continue;
    const bool right = RunCases(decoders, decodes, count, &shared->seeds[i], shared);
    std::exit(right ? 0 : 1);
  }
  const bool well = AllEndWell(processes, decoders, *shared);
  for (size_t i = 0; i < decoders.size(); ++i) {
    std::printf("%10ld %s\n", long(shared->each[i]), decoders[i].name);
  }
  std::printf("%10ld decodes of cases from seed %u on: %s\n", long(shared->all), seed,
              well ? "ok" : "FAILED");
  return well ? 0 : 1;
}

}  // namespace
}  // namespace grace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t usual) { return i < argc ? std::atoll(argv[i]) : usual; };
  return grace::Main(number(1, 200000), static_cast<uint32_t>(number(2, 1)),
                     std::clamp<int64_t>(number(3, 1), 1, 64));
}
