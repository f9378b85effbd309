// Stores the decoded values, or adds them to 0 or to what is there.
template <Into kInto>
GRACE_INLINE void Put(F value, float* out) {
  if (kInto != Into::kPlain) {
    value = Add(kInto == Into::kZero ? Set(0.0f) : Load(out), value);
    value = Keep(Normal(AsU(value)), value);
  }
  Store(out, value);
}

// The values of whole groups.
template <Into kInto>
static void DequantizeGroups(const DequantizeJob& job, int64_t begin, int64_t end,
                             const uint32_t* words, float* out) {
  const Quantization& q = job.quantization;
  BlockFactors<Unit> units(job.scales, job.n, q.block, q.levels, begin);
  const U levels = SetU(static_cast<uint32_t>(q.levels));
  const U top = SetU(static_cast<uint32_t>(2 * q.levels));
  for (int64_t i = begin; i < end; i += kGroup, words += q.bits, out += kGroup) {
    F factors[kGroup / kLanes];
    FactorsOf(units, i, factors);
    B low{}, high{};
    for (int32_t p = std::min(q.bits, 8) - 1; p >= 0; --p) low = Push(low, words[p]);
    for (int32_t p = q.bits - 1; p >= 8; --p) high = Push(high, words[p]);
    U codes[kGroup / kLanes];
    for (int j = 0; j < kGroup / kLanes; ++j) codes[j] = Widen(low, j);
    for (int j = 0; q.bits > 8 && j < kGroup / kLanes; ++j) {
      codes[j] = Or(codes[j], ShiftLeft<8>(Widen(high, j)));
    }
    for (int j = 0; j < kGroup / kLanes; ++j) {
      const U level = Sub(MinInt(codes[j], top), levels);
      Put<kInto>(Mul(FromInt(level), factors[j]), out + kLanes * j);
    }
  }
}
