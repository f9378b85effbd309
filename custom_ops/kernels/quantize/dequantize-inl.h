// The codes of a group, of at most 16 bits.
GRACE_INLINE void CodesOf(const uint32_t* words, int32_t bits, U* codes) {
  B low{}, high{};
  for (int32_t p = std::min(bits, 8) - 1; p >= 0; --p) low = Push(low, words[p]);
  for (int32_t p = bits - 1; p >= 8; --p) high = Push(high, words[p]);
  for (int j = 0; j < kGroup / kLanes; ++j) codes[j] = Widen(low, j);
  for (int j = 0; bits > 8 && j < kGroup / kLanes; ++j) {
    codes[j] = Or(codes[j], ShiftLeft<8>(Widen(high, j)));
  }
}

// The values of whole groups, added to 0 or to what is there. Where kLast, and there
// denormals must be zero, the result is multiplied by the job's factor, and the function returns
// whether all results are finite; else it returns true.
template <Into kInto, bool kLast, bool kMinMax>
static bool DequantizeGroups(const DequantizeJob& job, int64_t begin, int64_t end,
                             const uint32_t* words, float* out) {
  const Quantization& q = job.quantization;
  const int64_t floats = kMinMax ? 2 : 1;
  BlockFactors<Unit> units(job.scales, floats, job.n, q.block, q.Half(), begin);
  BlockFactors<Lowest> minima(job.scales + floats - 1, floats, job.n, q.block, 0.0f, begin);
  const U levels = SetU(static_cast<uint32_t>(q.levels));
  const U top = SetU(static_cast<uint32_t>(2 * q.levels));
  const F last = Set(job.factor);
  U largest = SetU(0);
  for (int64_t i = begin; i < end; i += kGroup, words += q.bits, out += kGroup) {
    U codes[kGroup / kLanes];
    CodesOf(words, q.bits, codes);
    // The usual case: one unit for the group, and products that are the results as they are.
    if (kInto == Into::kZero && !kMinMax && units.Uniform(i) && job.NeedsNoChecks(units.factor())) {
      const F unit = Set(units.factor());
      for (int j = 0; j < kGroup / kLanes; ++j) {
        const F value = Mul(FromInt(Sub(MinInt(codes[j], top), levels)), unit);
        Store(out + kLanes * j, kLast ? Mul(value, last) : value);
      }
      continue;
    }
    F factors[kGroup / kLanes], lowest[kGroup / kLanes];
    FactorsOf(units, i, factors);
    if (kMinMax) FactorsOf(minima, i, lowest);
    for (int j = 0; j < kGroup / kLanes; ++j) {
      const U level = kMinMax ? codes[j] : Sub(MinInt(codes[j], top), levels);
      F value = Mul(FromInt(level), factors[j]);
      if (kMinMax) value = Add(lowest[j], value);
      if (kMinMax) value = Keep(Normal(AsU(value)), value);
      value = Add(kInto == Into::kZero ? Set(0.0f) : Load(out + kLanes * j), value);
      value = Keep(Normal(AsU(value)), value);
      if (kLast) {
        value = Mul(value, last);
        largest = MaxInt(largest, And(AsU(value), SetU(kMagnitude)));
      }
      Store(out + kLanes * j, value);
    }
  }
  return MaxOf(largest) < kInfinity;
}
