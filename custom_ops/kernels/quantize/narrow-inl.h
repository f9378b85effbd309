// The halves of elements from `first`, which begins a group, on.
static void RoundHalves(const PhiloxSchedule& schedule, int64_t first, int64_t count,
                        const float* x, uint16_t* halves) {
  alignas(64) uint32_t random[kCoarseBatch];
  const U magnitude = SetU(kMagnitude), largest = SetU(kInfinity - 1);
  for (int64_t begin = 0; begin < count; begin += kCoarseBatch) {
    CoarseBatch(schedule, (first + begin) / 8, random);
    const int64_t n = std::min<int64_t>(kCoarseBatch, count - begin);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const U bits = AsU(Load(x + begin + i));
      const U rounded = Add(bits, ShiftRight<16>(LoadU(random + i)));
      const M beyond = Greater(And(rounded, magnitude), largest);
      StoreH(halves + begin + i, Narrow(ShiftRight<16>(Blend(beyond, bits, rounded))));
    }
    for (; i < n; ++i) halves[begin + i] = RoundedHalf(BitsOf(x[begin + i]), random[i]);
  }
}

static void WidenHalves(const uint16_t* halves, int64_t count, float* x) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store(x + i, AsF(ShiftLeft<16>(Widen(LoadH(halves + i)))));
  }
  for (; i < count; ++i) x[i] = FloatOf(static_cast<uint32_t>(halves[i]) << 16);
}
