// The compiler vectorises this loop by itself.
//
// m * beta + (x * multiplier) * rest; returns whether all of it is finite.
static bool Average(const float* x, const float* m, float multiplier, float beta, float rest,
                    int64_t n, float* __restrict out) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float product = x[i] * multiplier;
    const float own = product * rest;
    out[i] = m[i] * beta + own;
    bad |= (BitsOf(out[i]) & kInfinity) == kInfinity;
  }
  return bad == 0;
}
