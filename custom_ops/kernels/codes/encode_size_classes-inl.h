// Sorts whole groups into classes: their planes of tags, and the numbers of each class one behind
// the other. Where kKeep, residual_out, which may be acc, gets acc minus what is sent.
template <bool kKeep>
static void EmitGroups(const ClassEdges& edges, MovingWindow* window, const float* acc,
                       int64_t groups, uint32_t* tags, ClassNumbers* out, float* residual_out) {
  const U magnitude = SetU(kMagnitude), sign_bit = SetU(kSignBit);
  const U byte = SetU(edges.byte - 1), half = SetU(edges.half - 1), whole = SetU(edges.whole - 1);
  const F units_in = Set(edges.UnitsIn()), unit = Set(edges.Unit());
  const bool more = window->room > 0;
  int64_t bytes = 0, halves = 0, wholes = 0;
  for (int64_t g = 0; g < groups; ++g, acc += kGroup) {
    uint32_t some = 0, large = 0, largest = 0, below = 0;
    for (int i = 0; i < kGroup; i += kLanes) {
      const U e = ShiftRight<23>(And(AsU(Load(acc + i)), magnitude));
      some |= Bits(Greater(e, byte)) << i;
      large |= Bits(Greater(e, half)) << i;
      largest |= Bits(Greater(e, whole)) << i;
      if (more) below |= Bits(Equal(e, byte)) << i;
    }
    const uint32_t of_bytes = (some & ~large) | window->Admit(below), of_halves = large & ~largest;
    tags[2 * g] = of_bytes | largest;
    tags[2 * g + 1] = large;
    for (int i = 0; i < kGroup; i += kLanes) {
      const F x = Load(acc + i);
      const F size = AsF(And(AsU(x), magnitude));
      const U sign = And(AsU(x), sign_bit);
      // Exact, since the factors are powers of two; what is not finite becomes the largest number.
      const M in_bytes = MaskOf(of_bytes >> i);
      const U level = ToInt(Min(Mul(Keep(in_bytes, size), units_in), Set(127.0f)));
      U sent = AsU(Mul(FromInt(level), unit));
      StoreU(out->bytes + bytes, Compress(in_bytes, Or(level, ShiftRight<24>(sign))));
      bytes += __builtin_popcount(Bits(in_bytes));
      if (large) {
        const M in_halves = MaskOf(of_halves >> i), in_wholes = MaskOf(largest >> i);
        const U own = ToInt(Min(Mul(Keep(in_halves, size), units_in), Set(32767.0f)));
        StoreU(out->halves + halves, Compress(in_halves, Or(own, ShiftRight<16>(sign))));
        StoreU(out->wholes + wholes, Compress(in_wholes, AsU(x)));
        halves += __builtin_popcount(Bits(in_halves));
        wholes += __builtin_popcount(Bits(in_wholes));
        sent = Or(sent, AsU(Mul(FromInt(own), unit)));
        sent = Or(sent, AsU(Keep(in_wholes, size)));
      }
      if (kKeep) {
        const U signs = AsU(Keep(MaskOf((of_bytes | large) >> i), AsF(sign)));
        Store(residual_out + kGroup * g + i, Sub(x, AsF(Or(sent, signs))));
      }
    }
  }
  out->found = {bytes, halves, wholes};
}

// How often each exponent occurs. Several tables, since a counter cannot be raised again before it
// is written.
static void CountExponents(const float* acc, int64_t count, uint16_t* found) {
  uint16_t tables[4][256] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    ++tables[0][BitsOf(acc[i]) >> 23 & 0xff];
    ++tables[1][BitsOf(acc[i + 1]) >> 23 & 0xff];
    ++tables[2][BitsOf(acc[i + 2]) >> 23 & 0xff];
    ++tables[3][BitsOf(acc[i + 3]) >> 23 & 0xff];
  }
  for (; i < count; ++i) ++tables[0][BitsOf(acc[i]) >> 23 & 0xff];
  for (int e = 0; e < 256; ++e) {
    found[e] = tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];
  }
}
