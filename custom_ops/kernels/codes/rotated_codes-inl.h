constexpr int kVectors = static_cast<int>(kGroup) / kLanes;  // of a group

// The sums of what is given for all elements: of every 32nd one after another.
struct GroupSums {
  F sums[kVectors];
  GRACE_INLINE_MEMBER GroupSums() {
    for (F& sum : sums) sum = Set(0.0f);
  }
  // By halves.
  GRACE_INLINE_MEMBER float Whole() {
    for (int half = kVectors / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] = Add(sums[i], sums[i + half]);
    }
    return SumOf(sums[0]);
  }
};

// The largest magnitude of a block, as bits.
static uint32_t LargestOf(const float* x, int64_t size) {
  const U magnitude = SetU(kMagnitude);
  U largest = SetU(0);
  for (int64_t i = 0; i < size; i += kLanes) {
    largest = MaxInt(largest, And(AsU(Load(x + i)), magnitude));
  }
  return MaxOf(largest);
}

GRACE_INLINE F Flipped(F v, const uint32_t* signs) { return AsF(Xor(AsU(v), LoadU(signs))); }

// The centroids of codes, whose bits above those of the magnitude do not count.
template <int kBits>
GRACE_INLINE F Centroids(const RotatedJob& job, U codes) {
  return kBits == 5 ? LookupOf16(job.near, codes) : Lookup(job.near, codes);
}

// The codes of a group's magnitudes, in steps, without signs; `numbers` gets their centroids.
template <int kBits>
GRACE_INLINE B Magnitudes(const RotatedJob& job, const F* steps, F* numbers) {
  U whole[kVectors];
  for (int j = 0; j < kVectors; ++j) whole[j] = ToInt(Rint(steps[j]));
  if constexpr (kBits) {
    const B bytes = BytesOf(whole);
    B codes{};
#pragma GCC unroll 16
    for (int k = 0; k + 1 < 1 << (kBits - 1); ++k) {
      codes = CountFrom(codes, bytes, static_cast<uint8_t>(job.code.limits[k]));
    }
    for (int j = 0; j < kVectors; ++j) numbers[j] = Centroids<kBits>(job, Widen(codes, j));
    return codes;
  } else {
    uint32_t each[kGroup];
    float values[kGroup];
    for (int j = 0; j < kVectors; ++j) StoreU(each + kLanes * j, whole[j]);
    for (int64_t i = 0; i < kGroup; ++i) {
      each[i] = job.codes_of_steps[each[i]];
      values[i] = job.code.centroids[each[i]];
    }
    for (int j = 0; j < kVectors; ++j) {
      whole[j] = LoadU(each + kLanes * j);
      numbers[j] = Load(values + kLanes * j);
    }
    return BytesOf(whole);
  }
}

// Where denormals are zero: the words and the scale of a block, and where kKeep what they fail to
// carry. x has the block's `size` elements and y room for them. Returns whether x is finite.
template <int kBits, bool kKeep>
static bool EncodeRotatedBlock(const RotatedJob& job, const float* x, int64_t size, float* y,
                               uint32_t* words, float* scale, float* residual_out) {
  const int32_t bits = kBits ? kBits : job.code.bits;
  const uint32_t largest = LargestOf(x, size);
  const bool finite = largest < kInfinity;
  if (!finite || largest < BitsOf(kLeastRotated)) {
    std::fill_n(words, size / kGroup * bits, 0u);
    *scale = finite ? 0.0f : FloatOf(0x7fc00000u);
    const F sent = Set(*scale);
    for (int64_t i = 0; kKeep && i < size; i += kLanes) {
      Store(residual_out + i, Sub(Load(x + i), sent));
    }
    return finite;
  }
  const uint32_t power = 2 * 127 + kRotatedExponent - (largest >> 23);
  const F factor = Set(FloatOf(power << 23));
  GroupSums squares;
  Transform(
      size, y, [&](int64_t i) { return Flipped(Mul(Load(x + i), factor), job.signs + i); },
      [&](int64_t i, int k, F v) {
        Store(y + i, v);
        F& sum = squares.sums[(kTile * kLanes < kGroup ? i / kLanes : k) % kVectors];
        sum = Add(sum, Mul(v, v));
      });
  const double square = squares.Whole();
  const auto norm = static_cast<float>(std::sqrt(square * (1.0 / static_cast<double>(size))));
  const F unit = Set(static_cast<float>(static_cast<double>(job.code.resolution) / norm));
  const F last = Set(static_cast<float>(job.code.Last()));
  const bool least = job.code.least != 0;
  GroupSums shared, own;
  for (int64_t i = 0; i < size; i += kGroup, words += bits) {
    F a[kVectors], steps[kVectors], numbers[kVectors];
    uint32_t negative = 0;
    for (int j = 0; j < kVectors; ++j) {
      const F v = Load(y + i + kLanes * j);
      negative |= Bits(Negative(v)) << (kLanes * j % 32);
      a[j] = AsF(And(AsU(v), SetU(kMagnitude)));
      steps[j] = Min(Mul(a[j], unit), last);
    }
    B codes = Magnitudes<kBits>(job, steps, numbers);
    words[bits - 1] = negative;
    if (bits > 1) codes = Raise(codes, 9 - bits);
    for (int32_t p = bits - 2; p >= 0; --p) {
      words[p] = TopBits(codes);
      codes = Raise(codes, 1);
    }
    for (int j = 0; j < kVectors; ++j) {
      shared.sums[j] = Add(shared.sums[j], Mul(numbers[j], a[j]));
      if (least) own.sums[j] = Add(own.sums[j], Mul(numbers[j], numbers[j]));
      if (!kKeep) continue;
      const U sign = AsU(Keep(MaskOf(negative >> (kLanes * j % 32)), AsF(SetU(kSignBit))));
      Store(y + i + kLanes * j, AsF(Xor(AsU(numbers[j]), sign)));
    }
  }
  const double along = shared.Whole();
  const double over = least ? along : square, under = least ? own.Whole() : along;
  const double all = static_cast<double>(FloatOf(power << 23)) * static_cast<double>(size);
  *scale = static_cast<float>(over / (under * all));
  if (!kKeep) return true;
  const F worth = Set(RotatedScale(*scale));
  Transform(
      size, y, [&](int64_t i) { return Mul(Load(y + i), worth); },
      [&](int64_t i, int, F v) {
        v = Flipped(v, job.signs + i);
        Store(residual_out + i, Sub(Load(x + i), Keep(Normal(AsU(v)), v)));
      });
  return true;
}

// Adds what the words of a block stand for to 0 (kFirst) or to y.
template <int kBits, bool kFirst>
GRACE_INLINE void AddRotated(const RotatedJob& job, const uint32_t* words, float scale,
                             int64_t size, float* y) {
  const int32_t bits = kBits ? kBits : job.code.bits;
  const F worth = Set(RotatedScale(scale));
  for (int64_t i = 0; i < size; i += kGroup, words += bits) {
    B codes{};
    for (int32_t p = bits - 1; p >= 0; --p) codes = Push(codes, words[p]);
    float values[kGroup];
    if (!kBits) {
      uint8_t each[kGroup];
      std::memcpy(each, &codes, kGroup);
      for (int64_t k = 0; k < kGroup; ++k) values[k] = job.values[each[k]];
    }
    for (int j = 0; j < kVectors; ++j) {
      F v;
      if constexpr (kBits) {
        const U code = Widen(codes, j);
        const U sign = And(ShiftLeft<32 - (kBits ? kBits : 1)>(code), SetU(kSignBit));
        v = AsF(Xor(AsU(Centroids<kBits>(job, code)), sign));
      } else {
        v = Load(values + kLanes * j);
      }
      v = Mul(v, worth);
      float* const to = y + i + kLanes * j;
      Store(to, kFirst ? v : Add(Load(to), v));
    }
  }
}

// Where denormals are zero: the totals of a block, of all workers' words and scales, which lie
// `words_stride` and `scales_stride` apart. Returns whether the first n totals are finite.
template <int kBits>
static bool DecodeRotatedBlock(const RotatedJob& job, const uint32_t* words, int64_t words_stride,
                               const float* scales, int64_t scales_stride, int64_t workers,
                               int64_t size, int64_t n, float factor, float* y, float* out) {
  AddRotated<kBits, true>(job, words, *scales, size, y);
  for (int64_t w = 1; w < workers; ++w) {
    AddRotated<kBits, false>(job, words + w * words_stride, scales[w * scales_stride], size, y);
  }
  const F times = Set(factor);
  U largest = SetU(0);
  Transform(
      size, y, [&](int64_t i) { return Load(y + i); },
      [&](int64_t i, int, F v) {
        v = Flipped(v, job.signs + i);
        v = Mul(Keep(Normal(AsU(v)), v), times);
        largest = MaxInt(largest, And(AsU(v), SetU(kMagnitude)));
        Store(out + i, v);
      });
  if (n == size) return MaxOf(largest) < kInfinity;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= (BitsOf(out[i]) & kInfinity) != kInfinity;
  return finite;
}
