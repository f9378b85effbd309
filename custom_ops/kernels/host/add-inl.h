// out = a + b, where denormals are zero. `out` may be a or b.
static void AddFloats(const float* a, const float* b, int64_t count, float* out) {
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + kLanes <= count; i += kLanes) Store(out + i, Add(Load(a + i), Load(b + i)));
  if (kLanes == 1 || i == count) return;
  generic::AddFloats(a + i, b + i, count - i, out + i);
}
