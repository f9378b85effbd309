// Writes the index (first + i) and the bits of each x[i], i < count, whose key is at least `least`;
// returns how many there are. May write up to kSlack elements beyond.
static int64_t Pick(const float* x, int64_t first, int64_t count, uint32_t least, int32_t* indices,
                    uint32_t* bits) {
  const U below = SetU(least - 1), magnitude = SetU(kMagnitude), step = SetU(kLanes);
  U at = Add(SetU(static_cast<uint32_t>(first)), Lanes());
  int64_t found = 0, i = 0;
  // Moving lanes to the front and storing all of them beats any branch.
#pragma GCC unroll 4
  for (; i + kLanes <= count; i += kLanes) {
    const U own = AsU(Load(x + i));
    const M reaches = Greater(And(own, magnitude), below);
    StoreU(reinterpret_cast<uint32_t*>(indices) + found, Compress(reaches, at));
    StoreU(bits + found, Compress(reaches, own));
    found += __builtin_popcount(Bits(reaches));
    at = Add(at, step);
  }
  if (kLanes == 1 || i == count) return found;
  return found + generic::Pick(x + i, first + i, count - i, least, indices + found, bits + found);
}
