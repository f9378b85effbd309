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

// The classes of whole groups, from their planes.
static void UnpackClasses(const uint32_t* words, int64_t groups, uint8_t* classes) {
  for (int64_t g = 0; g < groups; ++g) {
    const B own = Push(Push(B{}, words[2 * g + 1]), words[2 * g]);
    std::memcpy(classes + kGroup * g, &own, kGroup);
  }
}

// Where denormals are zero: values of whole groups added to 0 (`first`) or to `out`, a denormal sum
// becoming 0; where `last`, times the factor. Returns whether all are finite then.
static bool AddClasses(const float* values, int64_t groups, bool first, bool last, float factor,
                       float* out) {
  U largest = SetU(0);
  for (int64_t i = 0; i < kGroup * groups; i += kLanes) {
    F sum = Add(first ? Set(0.0f) : Load(out + i), Load(values + i));
    sum = Keep(Normal(AsU(sum)), sum);
    if (last) {
      sum = Mul(sum, Set(factor));
      largest = MaxInt(largest, And(AsU(sum), SetU(kMagnitude)));
    }
    Store(out + i, sum);
  }
  return MaxOf(largest) < kInfinity;
}
