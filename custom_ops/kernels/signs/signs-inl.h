// One word for each whole group: bit 1 where x >= 0.
static void Pack(const float* x, int64_t groups, uint32_t* words) {
  const U infinity = SetU(kInfinity), minus_zero = SetU(kSignBit);
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t word = 0;
    for (int i = 0; i < kGroup; i += kLanes) {
      const U v = AsU(Load(x + kGroup * g + i));
      word |= Bits(Or(AtMost(v, infinity), Equal(v, minus_zero))) << i;
    }
    words[g] = word;
  }
}

// Writes `one` where the positive bit is 1, minus `one` elsewhere, but 0 * `one` where the tie bit
// is 1; without `tie` there are no ties.
static void Expand(const uint32_t* positive, const uint32_t* tie, int64_t groups, float one,
                   float* out) {
  const F plus = Set(1.0f), minus = Set(-1.0f), times = Set(one);
  for (int64_t g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; i += kLanes) {
      F v = Blend(MaskOf(positive[g] >> i), plus, minus);
      if (tie) v = Keep(MaskOf(~tie[g] >> i), v);
      Store(out + kGroup * g + i, Mul(v, times));
    }
  }
}
