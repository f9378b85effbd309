// The vectors of a tile: what the last pass of a transform takes into registers at once.
constexpr int kTile = 8;

// Butterflies between kCount vectors, the farthest first.
template <int kCount>
GRACE_INLINE void AcrossVectors(F* v) {
#pragma GCC unroll 4
  for (int distance = kCount / 2; distance; distance /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      if (i & distance) continue;
      const F a = v[i], b = v[i + distance];
      v[i] = Add(a, b);
      v[i + distance] = Sub(a, b);
    }
  }
}

// Butterflies within a vector.
GRACE_INLINE F WithinVector(F v) {
  if constexpr (kLanes > 8) v = Butterfly<8>(v);
  if constexpr (kLanes > 4) v = Butterfly<4>(v);
  if constexpr (kLanes > 2) v = Butterfly<2>(v);
  if constexpr (kLanes > 1) v = Butterfly<1>(v);
  return v;
}

// One pass over `size` elements: the butterflies of `span` elements with their kRadix parts.
template <int kRadix, class Read>
GRACE_INLINE void RadixPass(int64_t size, int64_t span, const Read& read, float* y) {
  const int64_t step = span / kRadix;
  for (int64_t begin = 0; begin < size; begin += span) {
    for (int64_t i = begin; i < begin + step; i += kLanes) {
      F v[kRadix];
#pragma GCC unroll 8
      for (int k = 0; k < kRadix; ++k) v[k] = read(i + k * step);
      AcrossVectors<kRadix>(v);
#pragma GCC unroll 8
      for (int k = 0; k < kRadix; ++k) Store(y + i + k * step, v[k]);
    }
  }
}

// The last pass: all butterflies within kCount vectors.
template <int kCount, class Read, class Write>
GRACE_INLINE void TilePass(int64_t size, const Read& read, const Write& write) {
  for (int64_t i = 0; i < size; i += kCount * kLanes) {
    F v[kCount];
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) v[k] = read(i + k * kLanes);
    AcrossVectors<kCount>(v);
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) write(i + k * kLanes, k, WithinVector(v[k]));
  }
}

template <class Read, class Write>
GRACE_INLINE void LastPass(int64_t size, const Read& read, const Write& write) {
  if (size >= kTile * kLanes) {
    TilePass<kTile>(size, read, write);
  } else if (size == 4 * kLanes) {
    TilePass<4>(size, read, write);
  } else {
    TilePass<2>(size, read, write);
  }
}

// The Walsh-Hadamard transform of `size` elements, a power of two of 32 at least: read(i) gives the
// vector at element i, write(i, k, v) takes that of the result, where vectors come in order and k
// is i / kLanes modulo a multiple of kGroup / kLanes or of the vectors. y has room for all.
template <class Read, class Write>
GRACE_INLINE void Transform(int64_t size, float* y, const Read& read, const Write& write) {
  const auto again = [y](int64_t i) { return Load(y + i); };
  int64_t span = size;
  const int64_t last = kTile * kLanes;
  if (span <= last) {
    LastPass(size, read, write);
    return;
  }
  if (span >= 8 * last) {
    RadixPass<8>(size, span, read, y);
    span /= 8;
  } else if (span == 4 * last) {
    RadixPass<4>(size, span, read, y);
    span /= 4;
  } else {
    RadixPass<2>(size, span, read, y);
    span /= 2;
  }
  while (span > last) {
    if (span >= 8 * last) {
      RadixPass<8>(size, span, again, y);
      span /= 8;
    } else if (span == 4 * last) {
      RadixPass<4>(size, span, again, y);
      span /= 4;
    } else {
      RadixPass<2>(size, span, again, y);
      span /= 2;
    }
  }
  TilePass<kTile>(size, again, write);
}
