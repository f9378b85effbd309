#include "kernels/host/host_queue.h"

#include <algorithm>
#include <string>
#include <utility>

namespace grace {

void HostQueue::Submit(HostJob job) {
  if (job.bytes == 0) return job.done(nullptr);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_) {
      waiting_.push_back(std::move(job));
      submitted_.Raise(submitted_.value.load(std::memory_order_relaxed) + 1);
      return;
    }
  }
  const HostFailure failure{HostFailure::kStopped, "a worker is lost"};
  job.done(&failure);
}

void HostQueue::Stop() {
  collectives_.segment().Stop();
  submitted_.Wake();
}

void HostQueue::Serve() {
  try {
    collectives_.place() == 0 ? Lead() : Follow();
  } catch (const HostFailure& failure) {
    Stop();
    FailAll(failure);
  }
}

void HostQueue::Lead() {
  Announced& announced = collectives_.segment().announced();
  for (uint32_t number = 1;; ++number) {
    HostJob job;
    while (!Take(&job, nullptr)) {
      CheckWaiting();
      submitted_.Sleep(taken_ + 1);
    }
    // The previous announcement can be overwritten. Its collective has ended, and no process can
    // end a collective before all processes have read its announcement.
    announced.key = job.key;
    announced.bytes = job.bytes;
    announced.count.Raise(number);
    Run(std::move(job));
  }
}

void HostQueue::Follow() {
  Announced& announced = collectives_.segment().announced();
  for (uint32_t number = 1;; ++number) {
    while (!announced.count.Reached(number)) {
      CheckWaiting();
      announced.count.Sleep(number);
    }
    const int64_t key = announced.key, bytes = announced.bytes;
    HostJob job;
    for (;;) {
      const uint32_t before = submitted_.value.load(std::memory_order_acquire);
      if (Take(&job, &key)) break;
      CheckWaiting();
      submitted_.Sleep(before + 1);
    }
    if (job.bytes != bytes) {
      const HostFailure failure{HostFailure::kOther,
                                "it has " + std::to_string(job.bytes) + " bytes here and " +
                                    std::to_string(bytes) + " in another process of the host"};
      job.done(&failure);
      throw failure;
    }
    Run(std::move(job));
  }
}

void HostQueue::Run(HostJob job) {
  try {
    job.run(collectives_, job.deadline);
  } catch (const HostFailure& failure) {
    // The other processes are stopped first, so that none of their jobs still waits for this one.
    Stop();
    job.done(&failure);
    throw;
  }
  job.done(nullptr);
}

bool HostQueue::Take(HostJob* job, const int64_t* key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const HostJob& each) { return !key || each.key == *key; });
  if (found == waiting_.end()) return false;
  *job = std::move(*found);
  waiting_.erase(found);
  ++taken_;
  return true;
}

void HostQueue::CheckWaiting() {
  Deadline deadline = Deadline::max();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const HostJob& job : waiting_) deadline = std::min(deadline, job.deadline);
  }
  collectives_.segment().Check(deadline);
}

void HostQueue::FailAll(const HostFailure& failure) {
  std::deque<HostJob> left;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    left.swap(waiting_);
  }
  for (HostJob& job : left) job.done(&failure);
}

}  // namespace grace
