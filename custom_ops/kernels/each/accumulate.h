// v, or zero of its sign where it is denormal.
GRACE_INLINE F FlushToZero(F v) {
  const U bits = AsU(v);
  return AsF(Blend(Normal(bits), bits, And(bits, SetU(kSignBit))));
}

template <bool kTimes, bool kPlus>
static void Accumulate(const float* x, const float* residual, float multiplier, int64_t n,
                       float* out) {
  const F times = Set(multiplier);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = FlushToZero(Load(x + i));
    if (kTimes) v = FlushToZero(Mul(v, times));
    if (kPlus) v = FlushToZero(Add(v, FlushToZero(Load(residual + i))));
    Store(out + i, v);
  }
  if (kLanes == 1 || i == n) return;
  const float* rest = kPlus ? residual + i : nullptr;
  generic::Accumulate<kTimes, kPlus>(x + i, rest, multiplier, n - i, out + i);
}
