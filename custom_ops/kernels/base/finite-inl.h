// Whether all n elements are finite.
static bool Finite(const float* x, int64_t n) {
  const U infinity = SetU(kInfinity);
  M bad = MaskOf(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    bad = Or(bad, Equal(And(AsU(Load(x + i)), infinity), infinity));
  }
  if (Bits(bad)) return false;
  return kLanes == 1 || i == n || generic::Finite(x + i, n - i);
}
