GRACE_INLINE H ToBfloat16(F v) {
  const U bits = AsU(v), key = And(bits, SetU(kMagnitude));
  const U rounding = Add(SetU(0x7fff), And(ShiftRight<16>(bits), SetU(1)));
  const U half = ShiftRight<16>(Add(bits, rounding));
  return Narrow(Blend(Greater(key, SetU(kInfinity)), SetU(0x7fc0), half));
}

GRACE_INLINE F FromBfloat16(H h) { return AsF(ShiftLeft<16>(Widen(h))); }

template <Half kType>
GRACE_INLINE H ToHalf(F v) {
  return kType == Half::kFloat16 ? ToFloat16(v) : ToBfloat16(v);
}

template <Half kType>
GRACE_INLINE F FromHalf(H h) {
  return kType == Half::kFloat16 ? FromFloat16(h) : FromBfloat16(h);
}

// Where denormals are zero. Where kKeep, acc is `rest` and gets acc minus what it became.
template <Half kType, bool kKeep>
static void ToHalves(const float* acc, int64_t count, float* rest, uint16_t* halves) {
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + kLanes <= count; i += kLanes) {
    // A read of `rest` itself shows the compiler that no other element is changed.
    const F v = Load((kKeep ? rest : acc) + i);
    const H half = ToHalf<kType>(v);
    StoreH(halves + i, half);
    if (kKeep) Store(rest + i, Sub(v, FromHalf<kType>(half)));
  }
  if (kLanes == 1 || i == count) return;
  generic::ToHalves<kType, kKeep>(acc + i, count - i, kKeep ? rest + i : nullptr, halves + i);
}

// Where denormals are zero: total = half * factor. Returns whether every total is finite.
template <Half kType>
static bool FromHalves(const uint16_t* halves, int64_t count, float factor, float* total) {
  const F times = Set(factor);
  const U infinity = SetU(kInfinity);
  M bad = MaskOf(0);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F v = Mul(FromHalf<kType>(LoadH(halves + i)), times);
    bad = Or(bad, Equal(And(AsU(v), infinity), infinity));
    Store(total + i, v);
  }
  const bool finite = !Bits(bad);
  if (kLanes == 1 || i == count) return finite;
  return generic::FromHalves<kType>(halves + i, count - i, factor, total + i) && finite;
}
