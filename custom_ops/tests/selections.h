// What the tests of the CUDA kernels that select elements share.
#pragma once

#include "device.h"
#include "kernels/base/compensate.h"

namespace grace {

// Gradients that a kernel selects from. With `keep` there are residuals, and the kernel writes what
// it does not send: over the gradients where in_place, else apart.
struct Gradients {
  DeviceList xs, residuals, residual_out;
  std::vector<EncodeInput> sources;
  bool keep, in_place;

  Gradients(const std::vector<int64_t>& lengths, Kind kind, bool keeps, bool writes_over)
      : xs(lengths, kind, 1),
        residuals(DeviceList::Residuals(lengths, kind)),
        residual_out(lengths),
        keep(keeps),
        in_place(writes_over) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      float* to = !keep ? nullptr : in_place ? xs[i] : residual_out[i];
      sources.push_back({xs[i], keep ? residuals[i] : nullptr, to, lengths[i]});
    }
  }

  // Whether two kernels residual_out the same.
  bool SameKept(const Gradients& other) const {
    return !keep || (in_place ? xs.Equals(other.xs) : residual_out.Equals(other.residual_out));
  }
};

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
