// Runs the collectives of one process of a host, one after the other, in place 0's order.
//
// Collectives become ready in another order in each process. Place 0 takes its own as they come,
// and announces the key of each; the others wait until they have the one of that key. So no
// collective holds a thread of its caller, and none waits for one that some process never starts.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "kernels/host/host_collectives.h"

namespace grace {

struct HostJob {
  int64_t key;    // names the collective, in all processes
  int64_t bytes;  // the same in all processes; 0 has nothing to wait for
  Deadline deadline;
  std::function<void(HostCollectives&, Deadline)> run;
  // Called once, when it has run, or with the failure that has ended it.
  std::function<void(const HostFailure*)> done;
};

class HostQueue {
 public:
  HostQueue(Segment segment, int place) : collectives_(segment, place), submitted_{} {}

  int places() const { return collectives_.segment().places(); }
  void Submit(HostJob job);
  // Ends what waits, in all processes, and what is submitted later.
  void Stop();
  // Runs jobs; returns when the segment is stopped.
  void Serve();

 private:
  void Lead();
  void Follow();
  void Run(HostJob job);
  // The first job, or that of this key; false where there is none.
  bool Take(HostJob* job, const int64_t* key);
  // Throws HostFailure where the segment is stopped or a job's time is over.
  void CheckWaiting();
  void FailAll(const HostFailure& failure);

  HostCollectives collectives_;
  Counter submitted_;  // the number of jobs, for this process alone
  uint32_t taken_ = 0;
  std::mutex mutex_;
  std::deque<HostJob> waiting_;
  bool ended_ = false;  // nothing runs any more
};

}  // namespace grace
