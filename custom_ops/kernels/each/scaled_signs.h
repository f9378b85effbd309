// The compiler vectorises the loops over elements by itself.

// |x| as a double, a denormal as 0.
static inline double Magnitude(float x) {
  const uint32_t bits = BitsOf(x) & kMagnitude;
  return static_cast<double>(FloatOf(bits < kSmallestNormal ? 0u : bits));
}

static inline bool IsUp(float x) {
  const uint32_t bits = BitsOf(x);
  return (bits <= kInfinity) | (bits == kSignBit);
}

// x, a denormal as 0, where its sign's bit is `up`, else 0.
static inline double OfSide(float x, bool up) {
  const uint32_t bits = BitsOf(x);
  const bool counts = (IsUp(x) == up) & ((bits & kMagnitude) >= kSmallestNormal);
  return static_cast<double>(FloatOf(counts ? bits : 0u));
}

// Adds up n sums, a power of two.
static double Halve(double* __restrict sums, int64_t n) {
  while (n > 1) {
    n /= 2;
    double* __restrict upper = sums + n;
    for (int64_t i = 0; i < n; ++i) sums[i] += upper[i];
  }
  return sums[0];
}

// The sum of |x|. `sums` has room for half of the next power of two.
static double SumMagnitudes(const float* __restrict x, int64_t n, double* __restrict sums) {
  if (n == 1) return Magnitude(x[0]);
  int64_t half = 1;
  while (2 * half < n) half *= 2;
  const float* upper = x + half;
  for (int64_t i = 0; i < n - half; ++i) sums[i] = Magnitude(x[i]) + Magnitude(upper[i]);
  for (int64_t i = n - half; i < half; ++i) sums[i] = Magnitude(x[i]);
  return Halve(sums, half);
}

// The sum of the elements on one side.
static double SumSide(const float* __restrict x, int64_t n, bool up, double* __restrict sums) {
  if (n == 1) return OfSide(x[0], up);
  int64_t half = 1;
  while (2 * half < n) half *= 2;
  const float* upper = x + half;
  for (int64_t i = 0; i < n - half; ++i) sums[i] = OfSide(x[i], up) + OfSide(upper[i], up);
  for (int64_t i = n - half; i < half; ++i) sums[i] = OfSide(x[i], up);
  return Halve(sums, half);
}

// Adds `from` to `to`.
static void AddDoubles(const double* __restrict from, int64_t n, double* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// The sums of the columns of x [rows, width]: of the magnitudes, or of both sides if `low` is
// there; and how many elements of each are low. `room` is as large as x.
static void SumColumns(const float* __restrict x, int64_t rows, int64_t width,
                       double* __restrict room, double* __restrict low, double* __restrict high,
                       int32_t* __restrict lows) {
  int64_t padded = 1;
  while (padded < rows) padded *= 2;
  for (int side = low ? 0 : 1; side < 2; ++side) {
    for (int64_t i = 0; i < rows * width; ++i) {
      room[i] = low ? OfSide(x[i], side) : Magnitude(x[i]);
    }
    int64_t left = rows;
    for (int64_t half = padded / 2; half > 0; half /= 2) {
      AddDoubles(room + half * width, (left - half) * width, room);
      left = half;
    }
    std::memcpy(side ? high : low, room, width * sizeof *room);
  }
  for (int64_t j = 0; j < width; ++j) lows[j] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < width; ++j) lows[j] += !IsUp(x[r * width + j]);
  }
}

// Takes out of x what its signs stand for: one pair of levels, or a pair for each element.
template <bool kOnePair>
static void TakeOut(const float* __restrict low, const float* __restrict high, int64_t n,
                    float* __restrict x) {
  const float one_low = *low, one_high = *high;
  for (int64_t i = 0; i < n; ++i) {
    x[i] -= IsUp(x[i]) ? (kOnePair ? one_high : high[i]) : (kOnePair ? one_low : low[i]);
  }
}

// Adds what the signs stand for to whole groups of `total`, or to 0 for the first worker.
template <bool kOnePair>
static void AddSigns(const uint32_t* words, const float* low, const float* high, int64_t groups,
                     bool first, float* total) {
  F minus = Set(*low), plus = Set(*high);
  for (int64_t g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; i += kLanes) {
      const int64_t at = kGroup * g + i;
      if (!kOnePair) {
        minus = Load(low + at);
        plus = Load(high + at);
      }
      const F value = Blend(MaskOf(words[g] >> i), plus, minus);
      const F sum = Add(first ? Set(0.0f) : Load(total + at), value);
      Store(total + at, Keep(Normal(AsU(sum)), sum));
    }
  }
}

// m * beta + (x * multiplier) * rest; returns whether all of it is finite.
static bool Average(const float* x, const float* m, float multiplier, float beta, float rest,
                    int64_t n, float* __restrict out) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float product = x[i] * multiplier;
    const float own = product * rest;
    out[i] = m[i] * beta + own;
    bad |= (BitsOf(out[i]) & kInfinity) == kInfinity;
  }
  return bad == 0;
}
