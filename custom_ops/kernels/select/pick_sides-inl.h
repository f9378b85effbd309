// As Pick of base/collect-inl.h, with a bound for each sign; adds to `positive` and `negative` how
// many elements there are of each, but denormals.
static int64_t PickSides(const float* x, int64_t first, int64_t count, const uint32_t* least,
                         int32_t* indices, uint32_t* bits, int64_t* positive, int64_t* negative) {
  const U below_positive = SetU(least[0] - 1), below_negative = SetU(least[1] - 1);
  const U magnitude = SetU(kMagnitude), denormal = SetU(kSmallestNormal - 1);
  const U zero = SetU(0), step = SetU(kLanes);
  U at = Add(SetU(static_cast<uint32_t>(first)), Lanes());
  int64_t found = 0, i = 0, above = 0, nonzero = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const U own = AsU(Load(x + i)), key = And(own, magnitude);
    const M reaches = Greater(key, Blend(Greater(zero, own), below_negative, below_positive));
    StoreU(reinterpret_cast<uint32_t*>(indices) + found, Compress(reaches, at));
    StoreU(bits + found, Compress(reaches, own));
    found += __builtin_popcount(Bits(reaches));
    above += __builtin_popcount(Bits(Greater(own, denormal)));
    nonzero += __builtin_popcount(Bits(Greater(key, denormal)));
    at = Add(at, step);
  }
  *positive += above;
  *negative += nonzero - above;
  if (kLanes == 1 || i == count) return found;
  return found + generic::PickSides(x + i, first + i, count - i, least, indices + found,
                                    bits + found, positive, negative);
}
