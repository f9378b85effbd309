// The bits of the largest |x|; as integers NaN is above infinity.
static uint32_t Largest(const float* x, int64_t n) {
  const U magnitude = SetU(kMagnitude);
  U largest = SetU(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = MaxInt(largest, And(AsU(Load(x + i)), magnitude));
  }
  const uint32_t rest = kLanes == 1 || i == n ? 0 : generic::Largest(x + i, n - i);
  return std::max(MaxOf(largest), rest);
}

// The smallest and the largest x as integers in the order of floats.
static void Extremes(const float* x, int64_t n, int32_t* lowest, int32_t* highest) {
  const U magnitude = SetU(kMagnitude), ones = SetU(0xffffffffu);
  U low = SetU(kMagnitude), high = SetU(kSignBit);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const U v = AsU(Load(x + i)), ordered = Xor(v, And(SignBits(v), magnitude));
    low = MinInt(low, ordered);
    high = MaxInt(high, ordered);
  }
  *lowest = std::min(*lowest, static_cast<int32_t>(~MaxOf(Xor(low, ones))));
  *highest = std::max(*highest, static_cast<int32_t>(MaxOf(high)));
  if (kLanes > 1 && i < n) generic::Extremes(x + i, n - i, lowest, highest);
}

// kCount vectors' squares as one vector: each lane is the sum of kCount adjacent ones, added over
// adjacent pairs, then pairs of pairs.
template <int kCount>
GRACE_INLINE D SumSquares(const float* x) {
  if constexpr (kCount == 1) {
    return Square(x);
  } else {
    constexpr int kPart = kCount / kFan;
    D v[kFan];
    for (int i = 0; i < kFan; ++i) v[i] = SumSquares<kPart>(x + kPart * kDoubles * i);
    return AddEach(v);
  }
}

// sums[i]: the pairwise sum of the squares of the i-th 64 elements.
static void SumLeaves(const float* x, int64_t leaves, double* sums) {
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    double s[kDoubles];
    StoreD(s, SumSquares<kLeaf / kDoubles>(x + kLeaf * leaf));
    sums[leaf] = SumAdjacent<kDoubles>(s);
  }
}
