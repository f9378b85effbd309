// Adds what the signs stand for to whole groups of `total`, or to 0 for the first worker.
template <bool kOnePair>
static void AddSigns(const uint32_t* words, const float* low, const float* high, int64_t groups,
                     bool first, float* total) {
  F minus = Set(*low), plus = Set(*high);
  for (int64_t g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; i += kLanes) {
      const int64_t at = kGroup * g + i;
      if (!kOnePair) {
        minus = Load(low + at);
        plus = Load(high + at);
      }
      const F value = Blend(MaskOf(words[g] >> i), plus, minus);
      const F sum = Add(first ? Set(0.0f) : Load(total + at), value);
      Store(total + at, Keep(Normal(AsU(sum)), sum));
    }
  }
}
