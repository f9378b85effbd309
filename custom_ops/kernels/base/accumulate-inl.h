// Where denormals are zero.
template <bool kTimes, bool kPlus>
static void Accumulate(const float* x, const float* residual, float multiplier, int64_t n,
                       float* out) {
  const F times = Set(multiplier);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = Load(x + i);
    if (kTimes) v = Mul(v, times);
    if (kPlus) v = Add(v, Load(residual + i));
    Store(out + i, v);
  }
  if (kLanes == 1 || i == n) return;
  const float* rest = kPlus ? residual + i : nullptr;
  generic::Accumulate<kTimes, kPlus>(x + i, rest, multiplier, n - i, out + i);
}
