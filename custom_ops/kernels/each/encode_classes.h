// For each acc[i] its class at a shift, and its byte and its half, which mean something in their
// class only. The compiler vectorises these loops by itself.
static void Classify(const float* acc, int64_t count, const ClassEdges& edges, uint8_t* classes,
                     uint8_t* bytes, uint16_t* halves) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(acc[i]), significand = (bits & 0x7fffff) | 0x800000;
    const int32_t e = static_cast<int32_t>(bits >> 23 & 0xff);
    classes[i] =
        static_cast<uint8_t>((e >= edges.byte) + (e >= edges.half) + (e >= edges.whole));
    const int32_t byte_shift = std::min(std::max(16 + edges.half - e, 0), 31);
    const int32_t half_shift = std::min(std::max(8 + edges.whole - e, 0), 31);
    bytes[i] = static_cast<uint8_t>(significand >> byte_shift | bits >> 24 >> 7 << 7);
    halves[i] = static_cast<uint16_t>((significand >> half_shift & 0x7fff) | bits >> 31 << 15);
  }
}

// Two planes of the classes of whole groups.
static void PackClasses(const uint8_t* classes, int64_t groups, uint32_t* words) {
  for (int64_t g = 0; g < groups; ++g) {
    B own;
    std::memcpy(&own, classes + kGroup * g, kGroup);
    words[2 * g] = TopBits(Raise(own, 7));
    words[2 * g + 1] = TopBits(Raise(own, 6));
  }
}

// acc less what was sent of it.
static void Subtract(const float* sent, int64_t count, float* acc) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) acc[i] = acc[i] - sent[i];
}
