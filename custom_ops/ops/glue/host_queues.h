// The shared memories of this process, by number.
#pragma once

#include <cstdint>

#include "kernels/host/host_queue.h"

namespace grace {

// Throws Invalid where there is none of this number.
HostQueue& QueueOf(int64_t number);

}  // namespace grace
