// The level of v: |v| * factor, rounded, at most `top`, with the sign of v. For kMinMax it is
// (v - lowest) * factor, rounded, at most `top`. `u` is the uniform number of stochastic rounding.
// A denormal v counts as zero: the caller holds a DenormalsAreZero object, which sets the processor
// to this mode.
template <bool kStochastic, bool kMinMax>
GRACE_INLINE U Level(F v, F lowest, F factor, F u, F top) {
  const F a = kMinMax ? Sub(v, lowest) : AsF(And(AsU(v), SetU(kMagnitude)));
  F q = Mul(a, factor);
  if (kStochastic) q = Add(q, u);
  // Clamped before it is rounded, which is the same as after, and makes NaN the top level.
  q = Min(q, top);
  if (!kStochastic) q = Rint(q);
  if (kMinMax) return ToInt(q);
  // Of 0 there is one only, so the sign of minus zero needs no care.
  const U sign = SignBits(AsU(v));
  return Sub(Xor(ToInt(q), sign), sign);
}

// Stores the bit planes of a group of codes.
GRACE_INLINE void Planes(U* codes, int32_t bits, uint32_t* words) {
  for (int32_t from = 0; from < bits; from += 8) {
    const int32_t count = std::min(bits - from, 8);
    U low[kGroup / kLanes];
    for (int i = 0; i < kGroup / kLanes; ++i) {
      low[i] = bits > 8 ? And(codes[i], SetU(0xff)) : codes[i];
      codes[i] = ShiftRight<8>(codes[i]);
    }
    B bytes = Raise(BytesOf(low), 8 - count);
    for (int32_t p = count - 1; p >= 0; --p) {
      words[from + p] = TopBits(bytes);
      bytes = Raise(bytes, 1);
    }
  }
}

// Fetches a group for soon.
GRACE_INLINE void Prefetch(const float* x) {
  __builtin_prefetch(x);
  __builtin_prefetch(x + kGroup / 2);
}

// Where denormals are zero: the words of whole groups and, where kKeep, what they fail to carry, x
// less its decoded value.
template <bool kStochastic, int kBits, bool kKeep, bool kMinMax>
static void QuantizeGroups(const QuantizeJob& job, int64_t begin, int64_t end, const float* x,
                           uint32_t* words, float* residual_out) {
  const Quantization& q = job.quantization;
  const int32_t bits = kBits ? kBits : q.bits;
  const U levels = SetU(static_cast<uint32_t>(q.levels));
  const F top = Set(static_cast<float>(q.levels));
  const bool coarse = kBits == 2 || kBits == 4 || q.Coarse();
  const int64_t batch = coarse ? kCoarseBatch : kBatch;
  const int64_t floats = kMinMax ? 2 : 1;
  BlockFactors<Inverse> inverses(job.scales, floats, job.n, q.block, q.Half(), begin);
  BlockFactors<Unit> units(job.scales, floats, job.n, q.block, q.Half(), begin);
  BlockFactors<Lowest> minima(job.scales + floats - 1, floats, job.n, q.block, 0.0f, begin);
  alignas(64) uint32_t random[kBatch];
  for (int64_t i = begin; i < end; i += kGroup, x += kGroup, words += bits) {
    F factors[kGroup / kLanes], worth[kGroup / kLanes], lowest[kGroup / kLanes];
    FactorsOf(inverses, i, factors);
    if (kKeep) FactorsOf(units, i, worth);
    if (kMinMax) FactorsOf(minima, i, lowest);
    const int64_t at = (i - begin) & (batch - 1);
    for (const float* next : job.next) {
      if (next) Prefetch(next + (i - begin));
    }
    F u[kGroup / kLanes];
    if (kStochastic) {
      if (at == 0) PhiloxBatch(*job.schedule, coarse ? i / 8 : i / 4, random);
      if (coarse) {
        CoarseNumbers(random + at / 2, job.stratum, u);
      } else {
        FineNumbers(random + at, job.stratum, u);
      }
    }
    U codes[kGroup / kLanes];
    for (int j = 0; j < kGroup / kLanes; ++j) {
      const F v = Load(x + kLanes * j);
      const F least = kMinMax ? lowest[j] : v;
      const U level =
          Level<kStochastic, kMinMax>(v, least, factors[j], kStochastic ? u[j] : v, top);
      codes[j] = kMinMax ? level : Add(levels, level);
      if (kKeep) {
        F value = Mul(FromInt(level), worth[j]);
        if (kMinMax) value = Add(least, value);
        if (kMinMax) value = Keep(Normal(AsU(value)), value);
        Store(residual_out + (i - begin) + kLanes * j, Sub(v, value));
      }
    }
    Planes(codes, bits, words);
  }
}
