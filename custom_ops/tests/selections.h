// What the tests of the CUDA kernels that select elements share.
#pragma once

#include "device.h"

namespace grace {

// All orders of threads for some lists, one in turn for the others: emulation takes long.
template <class Body>
void OnOrders(int64_t n, const Body& body) {
  if (n > 2000 && n <= 1 << 14) return OnEveryOrder(body);
  static int turn = 0;
  OnOneOrder(turn++, body);
}

// How many of n are sent, in turn: few, many, one, all.
inline int64_t CountOf(int64_t n, int turn) {
  const int64_t ks[] = {CeilDiv(n, 100), CeilDiv(2 * n, 3), 1, n, CeilDiv(n, 7)};
  return ks[turn % 5];
}

}  // namespace grace
