// Words of kWides * kCount blocks from `block` on, which have the upper counter word of `start`.
//
// Each 32-bit word is kept in the low half of a 64-bit lane, the half the widening multiplication
// reads, so a round needs no blends and its low products need no instruction at all. Several chains
// of rounds go side by side, because one alone mostly waits for its multiplications.
template <int kCount>
GRACE_INLINE void PhiloxChains(const PhiloxSchedule& schedule, const PhiloxStart& start,
                               uint64_t block, uint32_t* words) {
  const W m0 = SetW(kPhiloxM0), m1 = SetW(kPhiloxM1);
  W a[kCount], b[kCount], c[kCount], d[kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    // Computes rounds 1 to 3. `start` holds the products that are equal in all blocks.
    const W p0_of_1 = MulWide(Counters(block + kWides * i), m0);
    const W p1_of_2 = MulWide(XorWide(HighHalf(p0_of_1), SetW(start.c1)), m1);
    const W p0 = MulWide(XorWide(HighHalf(p1_of_2), SetW(start.a2)), m0);
    const W p1 = MulWide(XorWide(p0_of_1, SetW(start.c2)), m1);
    a[i] = XorWide(HighHalf(p1), p1_of_2, SetW(schedule.k0[2]));
    c[i] = XorWide(HighHalf(p0), SetW(start.c3));
    b[i] = p1;
    d[i] = p0;
    InOrder(a[i], b[i], c[i], d[i]);
  }
#pragma GCC unroll 10
  for (int round = kStartRounds; round < kPhiloxRounds; ++round) {
    const W k0 = SetW(schedule.k0[round]), k1 = SetW(schedule.k1[round]);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const W p0 = MulWide(a[i], m0), p1 = MulWide(c[i], m1);
      a[i] = XorWide(HighHalf(p1), b[i], k0);
      c[i] = XorWide(HighHalf(p0), d[i], k1);
      b[i] = p1;
      d[i] = p0;
      InOrder(a[i], b[i], c[i], d[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    StoreBlocks(a[i], b[i], c[i], d[i], words + 4 * kWides * i);
  }
}

// The words of the 32 blocks from `block` on, that is of elements 4 * block to 4 * block + 127.
GRACE_INLINE void PhiloxBatch(const PhiloxSchedule& schedule, uint64_t block, uint32_t* words) {
  constexpr int kAll = kBatchBlocks / kWides, kRest = kAll % kChains;
  if ((block + kBatchBlocks - 1) >> 32 != block >> 32) {
    PhiloxAcross(schedule, block, words);
    return;
  }
  const PhiloxStart start(schedule, block);
  for (int j = 0; j < kAll - kRest; j += kChains) {
    PhiloxChains<kChains>(schedule, start, block + kWides * j, words + 4 * kWides * j);
  }
  if constexpr (kRest > 0) {
    constexpr int kFrom = kWides * (kAll - kRest);
    PhiloxChains<kRest>(schedule, start, block + kFrom, words + 4 * kFrom);
  }
}

// The coarse words of elements 8 * block to 8 * block + 255; 8 * block begins a group.
GRACE_INLINE void CoarseBatch(const PhiloxSchedule& schedule, uint64_t block, uint32_t* words) {
  constexpr int kHalf = kGroup / 2;
  alignas(64) uint32_t drawn[kBatch];
  PhiloxBatch(schedule, block, drawn);
  const U middle = SetU(0x8000), upper = SetU(0xffff0000u);
  for (int from = 0; from < kBatch; from += kHalf, words += kGroup) {
    for (int i = 0; i < kHalf; i += kLanes) {
      const U own = LoadU(drawn + from + i);
      StoreU(words + i, Or(ShiftLeft<16>(own), middle));
      StoreU(words + kHalf + i, Or(And(own, upper), middle));
    }
  }
}

// Computes the uniform numbers of a group from its random words. `stratum` is added to each word.
GRACE_INLINE void FineNumbers(const uint32_t* words, uint32_t stratum, F* u) {
  for (int j = 0; j < kGroup / kLanes; ++j) {
    const U word = Add(LoadU(words + kLanes * j), SetU(stratum));
    u[j] = Mul(FromInt(ShiftRight<8>(word)), Set(0x1p-24f));
  }
}

// (h + 1/2) / 2^16 for h below 2^16: 2^23 + h is a float with the bits of h in the lowest places.
GRACE_INLINE F CoarseNumber(U h) {
  const F above = AsF(Or(h, SetU(BitsOf(0x1p23f))));
  return Mul(Sub(above, Set(0x1p23f - 0.5f)), Set(0x1p-16f));
}

// Computes the uniform numbers of a group from 16 random words, whose halves stand for its 32
// coarse words. The upper half of `stratum` is added to each half.
GRACE_INLINE void CoarseNumbers(const uint32_t* words, uint32_t stratum, F* u) {
  constexpr int kVectors = kGroup / 2 / kLanes;
  const U upper = SetU((stratum >> 16) | (stratum & 0xffff0000u)), low = SetU(0xffff);
  for (int j = 0; j < kVectors; ++j) {
    const U word = Add16(LoadU(words + kLanes * j), upper);
    u[j] = CoarseNumber(And(word, low));
    u[kVectors + j] = CoarseNumber(ShiftRight<16>(word));
  }
}
