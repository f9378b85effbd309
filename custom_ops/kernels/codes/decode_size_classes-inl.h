// The numbers of bytes and of halves. The compiler vectorises these loops by itself.
static void ByteNumbers(const uint8_t* bytes, int64_t count, float unit, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t level = bytes[i] & 0x7f;
    out[i] = static_cast<float>(bytes[i] & 0x80 ? -level : level) * unit;
  }
}
static void HalfNumbers(const uint16_t* halves, int64_t count, float unit, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t level = halves[i] & 0x7fff;
    out[i] = static_cast<float>(halves[i] & 0x8000 ? -level : level) * unit;
  }
}

// The next numbers at the lanes of `bits`, else 0.
GRACE_INLINE U Next(uint32_t bits, const float* numbers, int64_t* next) {
  const M own = MaskOf(bits);
  const U v = AsU(Keep(own, AsF(Spread(own, AsU(Load(numbers + *next))))));
  *next += __builtin_popcount(Bits(own));
  return v;
}

// Where denormals are zero: what the tags and numbers of a chunk of `count` elements stand for,
// added to 0 (kFirst) or to `out`, which has whole groups, a denormal sum becoming 0. Where kLast,
// the sums are multiplied by the factor, and the result is whether all are finite.
template <bool kFirst, bool kLast>
static bool AddGroups(const uint32_t* tags, int64_t count, const ClassValues& values, float factor,
                      float* out) {
  U largest = SetU(0);
  int64_t bytes = 0, halves = 0, wholes = 0;
  for (int64_t at = 0; at < count; at += kGroup, tags += 2) {
    const uint32_t mask = GroupMask(count - at), low = tags[0] & mask, high = tags[1] & mask;
    for (int i = 0; i < kGroup; i += kLanes) {
      U v = Next((low & ~high) >> i, values.bytes, &bytes);
      if (high) {
        v = Or(v, Next((high & ~low) >> i, values.halves, &halves));
        v = Or(v, Next((high & low) >> i, values.wholes, &wholes));
      }
      F sum = Add(kFirst ? Set(0.0f) : Load(out + at + i), AsF(v));
      sum = Keep(Normal(AsU(sum)), sum);
      if (kLast) {
        sum = Mul(sum, Set(factor));
        largest = MaxInt(largest, And(AsU(sum), SetU(kMagnitude)));
      }
      Store(out + at + i, sum);
    }
  }
  return MaxOf(largest) < kInfinity;
}
