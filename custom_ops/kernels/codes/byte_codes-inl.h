GRACE_INLINE void StoreBytes(const U* codes, uint8_t* bytes) {
  const B group = BytesOf(codes);
  std::memcpy(bytes, &group, kGroup);
}

GRACE_INLINE U SignByte(U x) { return And(ShiftRight<24>(x), SetU(0x80)); }

// The code of the tree nearest to |x| * inverse / 4; inverse is four times that of the scale.
GRACE_INLINE U TreeCode(U x, F inverse) {
  const F a = Mul(Keep(Normal(x), AsF(And(x, SetU(kMagnitude)))), inverse);
  F code = Mul(a, Set(kTree.slopes[0]));
#pragma GCC unroll 6
  for (int k = 1; k < 7; ++k) {
    code = Min(Add(Mul(a, Set(kTree.slopes[k])), Set(kTree.starts[k])), code);
  }
  // In this order a NaN becomes the largest code.
  return Or(ToInt(Rint(Min(code, Set(127.0f)))), SignByte(x));
}

GRACE_INLINE F TreeValue(U byte, F scale) {
  const U code = And(byte, SetU(0x7f));
  const F c = FromInt(code);
  const U power = And(AsU(c), SetU(kInfinity));
  const F count = Sub(Mul(Add(c, Set(1.0f)), Set(9.0f)), Mul(AsF(power), Set(8.0f)));
  const F unit = Lookup(kTree.units, Sub(ShiftRight<23>(power), SetU(127)));
  const F value = Mul(Mul(Keep(Greater(code, SetU(0)), count), unit), scale);
  return AsF(Or(AsU(value), ShiftLeft<24>(And(byte, SetU(0x80)))));
}

// The code of the power of two that |x| becomes: its upper neighbour where adding 23 random bits to
// the mantissa carries into the exponent.
GRACE_INLINE U PowerCode(U x, U random) {
  const U sum = Add(And(x, SetU(kMagnitude)), ShiftRight<9>(random));
  const U code = Sub(ShiftRight<23>(sum), SetU(kPowerOffset));
  return Or(MinInt(MaxInt(code, SetU(0)), SetU(127)), SignByte(x));
}

GRACE_INLINE F PowerValue(U byte) {
  const U code = And(byte, SetU(0x7f));
  const F value = AsF(ShiftLeft<23>(Add(code, SetU(kPowerOffset))));
  return AsF(Or(AsU(Keep(Greater(code, SetU(0)), value)), ShiftLeft<24>(And(byte, SetU(0x80)))));
}

// x less what was sent of it, of which zero has no sign.
GRACE_INLINE F Left(F x, F sent) { return Sub(x, Add(Set(0.0f), sent)); }

// Where denormals are zero: the codes of whole groups of a tensor from element `begin` on, and,
// where kKeep, what they fail to carry. `residual_out` may be x.
template <bool kKeep>
static void TreeGroups(const TreeJob& job, int64_t begin, int64_t groups, const float* x,
                       uint8_t* bytes, float* residual_out) {
  BlockFactors<TreeInverse> inverses(job.scales, 1, job.n, job.block, 0.0f, begin);
  BlockFactors<TreeScale> scales(job.scales, 1, job.n, job.block, 0.0f, begin);
  for (int64_t g = 0; g < groups; ++g) {
    F factors[kGroup / kLanes], worth[kGroup / kLanes];
    FactorsOf(inverses, begin + kGroup * g, factors);
    if (kKeep) FactorsOf(scales, begin + kGroup * g, worth);
    U codes[kGroup / kLanes];
    for (int j = 0; j < kGroup / kLanes; ++j) {
      const int64_t at = kGroup * g + kLanes * j;
      const F v = Load(x + at);
      codes[j] = TreeCode(AsU(v), factors[j]);
      if (kKeep) Store(residual_out + at, Left(v, TreeValue(codes[j], worth[j])));
    }
    StoreBytes(codes, bytes + kGroup * g);
  }
}

// Likewise; `begin` begins a group.
template <bool kKeep>
static void PowerGroups(const PhiloxSchedule& schedule, int64_t begin, int64_t groups,
                        const float* x, uint8_t* bytes, float* residual_out) {
  alignas(64) uint32_t random[kCoarseBatch];
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t drawn = kGroup * g % kCoarseBatch;
    if (drawn == 0) CoarseBatch(schedule, (begin + kGroup * g) / 8, random);
    U codes[kGroup / kLanes];
    for (int j = 0; j < kGroup / kLanes; ++j) {
      const int64_t at = kGroup * g + kLanes * j;
      const F v = Load(x + at);
      codes[j] = PowerCode(AsU(v), LoadU(random + drawn + kLanes * j));
      if (kKeep) Store(residual_out + at, Left(v, PowerValue(codes[j])));
    }
    StoreBytes(codes, bytes + kGroup * g);
  }
}

// value added to 0 or to what is there, a denormal sum becoming 0; where kLast, times a factor.
template <bool kFirst, bool kLast>
GRACE_INLINE void AddValue(F value, F factor, float* out, U* largest) {
  F sum = Add(kFirst ? Set(0.0f) : Load(out), value);
  sum = Keep(Normal(AsU(sum)), sum);
  if (kLast) {
    sum = Mul(sum, factor);
    *largest = MaxInt(*largest, And(AsU(sum), SetU(kMagnitude)));
  }
  Store(out, sum);
}

// Where denormals are zero: one worker's numbers of whole groups, added to 0 (kFirst) or to `out`.
// Where kLast, the sums are multiplied by the factor, and the result is whether all are finite.
template <bool kFirst, bool kLast>
static bool TreeValues(const TreeJob& job, float factor, int64_t begin, int64_t groups,
                       const uint8_t* bytes, float* out) {
  BlockFactors<TreeScale> scales(job.scales, 1, job.n, job.block, 0.0f, begin);
  U largest = SetU(0);
  for (int64_t g = 0; g < groups; ++g) {
    F worth[kGroup / kLanes];
    FactorsOf(scales, begin + kGroup * g, worth);
    B group;
    std::memcpy(&group, bytes + kGroup * g, kGroup);
    for (int j = 0; j < kGroup / kLanes; ++j) {
      AddValue<kFirst, kLast>(TreeValue(Widen(group, j), worth[j]), Set(factor),
                              out + kGroup * g + kLanes * j, &largest);
    }
  }
  return MaxOf(largest) < kInfinity;
}

template <bool kFirst, bool kLast>
static bool PowerValues(float factor, int64_t groups, const uint8_t* bytes, float* out) {
  U largest = SetU(0);
  for (int64_t g = 0; g < groups; ++g) {
    B group;
    std::memcpy(&group, bytes + kGroup * g, kGroup);
    for (int j = 0; j < kGroup / kLanes; ++j) {
      AddValue<kFirst, kLast>(PowerValue(Widen(group, j)), Set(factor),
                              out + kGroup * g + kLanes * j, &largest);
    }
  }
  return MaxOf(largest) < kInfinity;
}
