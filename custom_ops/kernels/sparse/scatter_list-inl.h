// The compiler vectorises these loops by itself.

static bool MultiplyBy(float factor, int64_t count, float* buffer) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    buffer[i] *= factor;
    bad |= (BitsOf(buffer[i]) & kInfinity) == kInfinity;
  }
  return bad == 0;
}

static bool Ascends(const int32_t* indices, int64_t count) {
  uint32_t wrong = 0;
  for (int64_t i = 1; i < count; ++i) wrong |= indices[i - 1] >= indices[i];
  return wrong == 0;
}
