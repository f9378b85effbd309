static inline uint32_t IsBad(float x) { return (BitsOf(x) & kInfinity) == kInfinity; }

// The compiler vectorises these loops by itself; a pragma states that no element depends on
// another, since acc may be x. Where acc is null, nothing is computed and only x is checked.
static bool ComputeAcc(const float* x, const float* residual, float multiplier, int64_t count,
                       float* acc) {
  uint32_t bad = 0;
  if (!acc) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) bad |= IsBad(x[i]);
  } else if (!residual) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      acc[i] = x[i] * multiplier;
      bad |= IsBad(acc[i]);
    }
  } else if (multiplier == 1.0f) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      acc[i] = x[i] + residual[i];
      bad |= IsBad(acc[i]);
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const float product = x[i] * multiplier;
      acc[i] = product + residual[i];
      bad |= IsBad(acc[i]);
    }
  }
  return bad == 0;
}
