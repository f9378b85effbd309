// The compiler vectorises these loops by itself, told that no element depends on another: next may
// be u.
static bool AddUp(const float* x, const float* u, const float* v, const MomentumStep& step,
                  int64_t count, float* next, float* acc) {
  const float multiplier = step.multiplier, scale = step.scale, momentum = step.momentum;
  uint32_t bad = 0;
  if (step.nesterov) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const float product = x[i] * multiplier, g = product * scale;
      const float old = momentum * u[i];
      next[i] = old + g;
      const float ahead = momentum * next[i];
      acc[i] = (v[i] + g) + ahead;
      bad |= (BitsOf(acc[i]) & kInfinity) == kInfinity;
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const float product = x[i] * multiplier, g = product * scale;
      const float old = momentum * u[i];
      next[i] = old + g;
      acc[i] = v[i] + next[i];
      bad |= (BitsOf(acc[i]) & kInfinity) == kInfinity;
    }
  }
  return bad == 0;
}
