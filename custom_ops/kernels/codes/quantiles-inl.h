// The bits of each element; a zero for a denormal, the largest number of its sign for what is not
// finite.
GRACE_INLINE U NumberOf(F x) {
  const U own = AsU(x), largest = SetU(kInfinity - 1);
  const U number = Or(MinInt(And(own, SetU(kMagnitude)), largest), And(own, SetU(kSignBit)));
  return AsU(Keep(Normal(own), AsF(number)));
}

static void NumbersOf(const float* x, int64_t n, uint32_t* bits) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreU(bits + i, NumberOf(Load(x + i)));
  if (kLanes > 1 && i < n) generic::NumbersOf(x + i, n - i, bits + i);
}

// Where denormals are zero: the numbers of x, times the multiplier, plus the residual; and the
// least and the largest magnitude of those that are not zero, beside those already there.
template <bool kTimes, bool kPlus>
static void NumbersOfAcc(const float* x, const float* residual, float multiplier, int64_t n,
                         uint32_t* bits, Bounds* bounds) {
  const U magnitude = SetU(kMagnitude);
  // What is subtracted from the largest number, so that a maximum finds the least.
  U largest = SetU(bounds->largest), beneath = SetU(kMagnitude - bounds->least);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = Load(x + i);
    if (kTimes) v = Mul(v, Set(multiplier));
    if (kPlus) v = Add(v, Load(residual + i));
    const U number = NumberOf(v), own = And(number, magnitude);
    StoreU(bits + i, number);
    largest = MaxInt(largest, own);
    const F other = AsF(Sub(magnitude, own));
    beneath = MaxInt(beneath, AsU(Keep(Greater(own, SetU(0)), other)));
  }
  bounds->largest = MaxOf(largest);
  bounds->least = kMagnitude - MaxOf(beneath);
  if (kLanes == 1 || i == n) return;
  const float* rest = kPlus ? residual + i : nullptr;
  generic::NumbersOfAcc<kTimes, kPlus>(x + i, rest, multiplier, n - i, bits + i, bounds);
}

// The id of each bin, by the upper 16 bits of its elements.
static void IdsOf(const uint32_t* __restrict bits, int64_t n, const uint8_t* __restrict table,
                  uint8_t* __restrict ids) {
  for (int64_t i = 0; i < n; ++i) ids[i] = table[bits[i] >> 16];
}

static void TakeMeans(const uint8_t* __restrict ids, int64_t n, const float* __restrict means,
                      float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] -= means[ids[i]];
}

static void PackIds(const uint8_t* ids, int64_t groups, int32_t bits, uint32_t* words) {
  for (int64_t g = 0; g < groups; ++g, ids += kGroup, words += bits) {
    B group;
    std::memcpy(&group, ids, kGroup);
    group = Raise(group, 8 - bits);
    for (int32_t p = bits - 1; p >= 0; --p) {
      words[p] = TopBits(group);
      group = Raise(group, 1);
    }
  }
}

static void UnpackIds(const uint32_t* words, int64_t groups, int32_t bits, uint8_t* ids) {
  for (int64_t g = 0; g < groups; ++g, ids += kGroup, words += bits) {
    B group{};
    for (int32_t p = bits - 1; p >= 0; --p) group = Push(group, words[p]);
    std::memcpy(ids, &group, kGroup);
  }
}

// Adds means to sums; of the first worker to zero, so that a zero has no sign. Where denormals are
// zero.
template <bool kFirst>
static void AddMeans(const uint8_t* __restrict ids, int64_t n, const float* __restrict means,
                     float* __restrict sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] = (kFirst ? 0.0f : sums[i]) + means[ids[i]];
}
