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

// Adds the upper half of n sums to the lower half until `width` are left, n / width a power of two.
static void Halve(double* __restrict sums, int64_t n, int64_t width) {
  while (n > width) {
    n /= 2;
    double* __restrict upper = sums + n;
    for (int64_t i = 0; i < n; ++i) sums[i] += upper[i];
  }
}

// The i-th of n / 8 sums that three halvings of n values leave; value(i) is the i-th.
template <class Value>
GRACE_INLINE double HalvedThrice(const Value& value, int64_t i, int64_t n) {
  const int64_t q = n / 8;
  const double even = (value(i) + value(i + 4 * q)) + (value(i + 2 * q) + value(i + 6 * q));
  const double odd = (value(i + q) + value(i + 5 * q)) + (value(i + 3 * q) + value(i + 7 * q));
  return even + odd;
}

// Sums rows of `width` values by halves, rows beyond the end as 0, until one row is left in `sums`,
// which has room for half of the next power of two of rows, or one.
template <class Value>
GRACE_INLINE void SumByHalves(const Value& value, int64_t rows, int64_t width,
                              double* __restrict sums) {
  int64_t half = 1;
  while (2 * half < rows) half *= 2;
  const int64_t n = rows * width;
  if (rows == 2 * half && rows >= 8) {
    for (int64_t i = 0; i < n / 8; ++i) sums[i] = HalvedThrice(value, i, n);
    return Halve(sums, n / 8, width);
  }
  half *= width;
  for (int64_t i = 0; i < n - half; ++i) sums[i] = value(i) + value(i + half);
  for (int64_t i = std::max<int64_t>(n - half, 0); i < half; ++i) sums[i] = value(i);
  Halve(sums, half, width);
}

// The sum of |x|, at most kChunk elements.
static double SumMagnitudes(const float* __restrict x, int64_t n) {
  alignas(64) double sums[kChunk / 2];
  SumByHalves([x](int64_t i) { return Magnitude(x[i]); }, n, 1, sums);
  return sums[0];
}

// The sum of the elements on one side, at most kChunk.
static double SumSide(const float* __restrict x, int64_t n, bool up) {
  alignas(64) double sums[kChunk / 2];
  if (up) {
    SumByHalves([x](int64_t i) { return OfSide(x[i], true); }, n, 1, sums);
  } else {
    SumByHalves([x](int64_t i) { return OfSide(x[i], false); }, n, 1, sums);
  }
  return sums[0];
}

// Adds `from` to `to`.
static void AddDoubles(const double* __restrict from, int64_t n, double* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// The sums of the columns of x [rows, width], at most kChunk elements: of the magnitudes, or of
// both sides if `low` is there; and how many elements of each are low.
static void SumColumns(const float* __restrict x, int64_t rows, int64_t width,
                       double* __restrict low, double* __restrict high, int32_t* __restrict lows) {
  alignas(64) double sums[kChunk];
  if (low) {
    SumByHalves([x](int64_t i) { return OfSide(x[i], false); }, rows, width, sums);
    std::memcpy(low, sums, width * sizeof *sums);
    SumByHalves([x](int64_t i) { return OfSide(x[i], true); }, rows, width, sums);
  } else {
    SumByHalves([x](int64_t i) { return Magnitude(x[i]); }, rows, width, sums);
  }
  std::memcpy(high, sums, width * sizeof *sums);
  for (int64_t j = 0; j < width; ++j) lows[j] = 0;
  for (int64_t r = 0; low && r < rows; ++r) {
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
