// Sixteen floats at a time, whatever the width of the vectors, so that sums have one order on all.
constexpr int kStep = 16;
struct S {
  F part[kStep / kLanes];
};

GRACE_INLINE S LoadS(const float* x) {
  S v;
  for (int i = 0; i < kStep / kLanes; ++i) v.part[i] = Load(x + i * kLanes);
  return v;
}
// The first `count` floats, then zeros.
GRACE_INLINE S LoadS(const float* x, int64_t count) {
  if (count >= kStep) return LoadS(x);
  float all[kStep] = {};
  std::memcpy(all, x, count * sizeof *x);
  return LoadS(all);
}
GRACE_INLINE void StoreS(float* out, S v) {
  for (int i = 0; i < kStep / kLanes; ++i) Store(out + i * kLanes, v.part[i]);
}
GRACE_INLINE S Zero() {
  S v;
  for (F& part : v.part) part = Set(0.0f);
  return v;
}
GRACE_INLINE S AddS(S a, S b) {
  for (int i = 0; i < kStep / kLanes; ++i) a.part[i] = Add(a.part[i], b.part[i]);
  return a;
}
GRACE_INLINE S SubS(S a, S b) {
  for (int i = 0; i < kStep / kLanes; ++i) a.part[i] = Sub(a.part[i], b.part[i]);
  return a;
}
GRACE_INLINE S MulS(S a, S b) {
  for (int i = 0; i < kStep / kLanes; ++i) a.part[i] = Mul(a.part[i], b.part[i]);
  return a;
}
GRACE_INLINE S Times(S a, F b) {
  for (F& part : a.part) part = Mul(part, b);
  return a;
}
GRACE_INLINE float SumOfS(S v) {
  for (int half = kStep / kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v.part[i] = Add(v.part[i], v.part[i + half]);
  }
  return SumOf(v.part[0]);
}

// x * multiplier + residual.  Where denormals are zero, a product with 1 changes nothing that is
// computed from it.
template <bool kResidual>
GRACE_INLINE S Acc(const Strip& strip, int64_t at, int64_t count, F multiplier) {
  const S product = Times(LoadS(strip.x + at, count), multiplier);
  return kResidual ? AddS(product, LoadS(strip.residual + at, count)) : product;
}

GRACE_INLINE void Put(float* out, S v, int64_t count, bool bypass) {
  if (count < kStep) {
    float all[kStep];
    StoreS(all, v);
    std::memcpy(out, all, count * sizeof *out);
  } else if (bypass) {
    for (int i = 0; i < kStep / kLanes; ++i) StorePast(out + i * kLanes, v.part[i]);
  } else {
    StoreS(out, v);
  }
}

// The products of a row with kRank columns of q, beginning with column k. `kept`, unless null, gets
// the row itself.
template <bool kResidual, int kRank>
static void ProjectRow(const Strip& strip, const Factor& q, int64_t row, int64_t k, float* p,
                       float* kept, bool bypass) {
  S sums[kRank];
  for (S& sum : sums) sum = Zero();
  const F multiplier = Set(strip.multiplier);
  const float* column = q.data + k * q.padded;
  const int64_t padded = q.padded, at = row * strip.stride;
  const bool past = bypass && reinterpret_cast<uintptr_t>(kept + at) % 64 == 0;
  const auto add = [&](int64_t j, int64_t count) {
    const S acc = Acc<kResidual>(strip, at + j, count, multiplier);
    if (kept) Put(kept + at + j, acc, count, past);
    for (int c = 0; c < kRank; ++c) {
      sums[c] = AddS(sums[c], MulS(acc, LoadS(column + c * padded + j)));
    }
  };
  int64_t j = 0;
  for (; j + kStep <= strip.columns; j += kStep) add(j, kStep);
  if (j < strip.columns) add(j, strip.columns - j);
  for (int c = 0; c < kRank; ++c) p[row * q.rank + k + c] = SumOfS(sums[c]);
}

template <bool kResidual>
static void ProjectColumns(const Strip& strip, const Factor& q, int64_t row, int64_t k, float* p,
                           float* kept, bool bypass) {
  switch (q.rank - k) {
    case 1:
      return ProjectRow<kResidual, 1>(strip, q, row, k, p, kept, bypass);
    case 2:
      return ProjectRow<kResidual, 2>(strip, q, row, k, p, kept, bypass);
    case 3:
      return ProjectRow<kResidual, 3>(strip, q, row, k, p, kept, bypass);
    default:
      return ProjectRow<kResidual, 4>(strip, q, row, k, p, kept, bypass);
  }
}

// Once a row is in `kept`, which may be x itself, further columns of q take it from there.
static void Project(const Strip& strip, const Factor& q, float* p, float* kept, bool bypass) {
  const Strip there{kept, nullptr, strip.stride, strip.rows, strip.columns, 1.0f};
  const auto first = strip.residual ? ProjectColumns<true> : ProjectColumns<false>;
  for (int64_t row = 0; row < strip.rows; ++row) {
    first(strip, q, row, 0, p, kept, bypass);
    for (int64_t k = 4; k < q.rank; k += 4) {
      if (kept) {
        ProjectColumns<false>(there, q, row, k, p, nullptr, false);
      } else {
        first(strip, q, row, k, p, nullptr, false);
      }
    }
  }
}

// Fetches for soon what Acc reads there.
template <bool kResidual>
GRACE_INLINE void Prefetch(const Strip& strip, int64_t at) {
  __builtin_prefetch(strip.x + at);
  if (kResidual) __builtin_prefetch(strip.residual + at);
}

// Adds to kRank columns of sums, beginning with k, what kRows rows give for some columns.
template <bool kResidual, int kRank, int kRows>
static void AddRows(const Strip& strip, const float* p, int64_t row, int64_t k,
                    const Factor& sums) {
  constexpr int kAhead = 16;  // the rows of a block lie too far apart for the processor to guess
  const F multiplier = Set(strip.multiplier);
  const int64_t stride = strip.stride, padded = sums.padded, from = row * stride;
  float* own = sums.data + k * padded;
  F factors[kRows][kRank];
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < kRank; ++c) factors[i][c] = Set(p[(row + i) * sums.rank + k + c]);
  }
  const auto add = [&](int64_t j, int64_t count) {
    S acc[kRows] = {};
    for (int i = 0; i < kRows; ++i) {
      Prefetch<kResidual>(strip, from + (i + kAhead) * stride + j);
      acc[i] = Acc<kResidual>(strip, from + i * stride + j, count, multiplier);
    }
    for (int c = 0; c < kRank; ++c) {
      S sum = LoadS(own + c * padded + j);
      for (int i = 0; i < kRows; ++i) sum = AddS(sum, Times(acc[i], factors[i][c]));
      StoreS(own + c * padded + j, sum);
    }
  };
  int64_t j = 0;
  for (; j + kStep <= strip.columns; j += kStep) add(j, kStep);
  if (j < strip.columns) add(j, strip.columns - j);
}

template <bool kResidual, int kRows>
static void AddAll(const Strip& strip, const float* p, int64_t row, const Factor& sums) {
  for (int64_t k = 0; k < sums.rank; k += 4) {
    switch (sums.rank - k) {
      case 1:
        AddRows<kResidual, 1, kRows>(strip, p, row, k, sums);
        break;
      case 2:
        AddRows<kResidual, 2, kRows>(strip, p, row, k, sums);
        break;
      case 3:
        AddRows<kResidual, 3, kRows>(strip, p, row, k, sums);
        break;
      default:
        AddRows<kResidual, 4, kRows>(strip, p, row, k, sums);
    }
  }
}

template <bool kResidual>
static void ReprojectStrip(const Strip& strip, const float* p, const Factor& sums) {
  constexpr int kRows = 4;  // the sums are fetched and stored once for this many
  int64_t row = 0;
  for (; row + kRows <= strip.rows; row += kRows) AddAll<kResidual, kRows>(strip, p, row, sums);
  for (; row < strip.rows; ++row) AddAll<kResidual, 1>(strip, p, row, sums);
}

static void Reproject(const Strip& strip, const float* p, const Factor& sums) {
  return (strip.residual ? ReprojectStrip<true> : ReprojectStrip<false>)(strip, p, sums);
}

// Rows of the product of p and q, times a factor; or, for kSubtract, acc less the product.
// kRank 0 stands for any.
template <bool kSubtract, bool kResidual, int kRank>
static bool ExpandRows(const Strip& strip, const float* p, const Factor& q, float factor,
                       bool bypass, float* out) {
  const F multiplier = Set(strip.multiplier), all = Set(factor);
  const int64_t rank = kRank ? kRank : q.rank;
  U largest = SetU(0);
  for (int64_t i = 0; i < strip.rows; ++i) {
    const int64_t at = i * strip.stride;
    const bool past = bypass && reinterpret_cast<uintptr_t>(out + at) % 64 == 0;
    for (int64_t j = 0; j < strip.columns; j += kStep) {
      const int64_t count = strip.columns - j;
      S sum = Times(LoadS(q.data + j), Set(p[i * rank]));
      for (int64_t k = 1; k < rank; ++k) {
        sum = AddS(sum, Times(LoadS(q.data + k * q.padded + j), Set(p[i * rank + k])));
      }
      if (kSubtract) {
        sum = SubS(Acc<kResidual>(strip, at + j, count, multiplier), sum);
      } else {
        sum = Times(sum, all);
        for (const F part : sum.part) {
          largest = MaxInt(largest, And(AsU(part), SetU(kMagnitude)));
        }
      }
      Put(out + at + j, sum, count, past);
    }
  }
  return MaxOf(largest) < kInfinity;
}

template <bool kSubtract, bool kResidual>
static bool ExpandStrip(const Strip& strip, const float* p, const Factor& q, float factor,
                        bool bypass, float* out) {
  const auto expand = q.rank == 1   ? ExpandRows<kSubtract, kResidual, 1>
                      : q.rank == 2 ? ExpandRows<kSubtract, kResidual, 2>
                      : q.rank == 4 ? ExpandRows<kSubtract, kResidual, 4>
                                    : ExpandRows<kSubtract, kResidual, 0>;
  return expand(strip, p, q, factor, bypass, out);
}

static bool Expand(const Strip& strip, const float* p, const Factor& q, float factor, bool bypass,
                   float* out) {
  return ExpandStrip<false, false>(strip, p, q, factor, bypass, out);
}

static void Subtract(const Strip& strip, const float* p, const Factor& q, bool bypass, float* out) {
  const auto subtract = strip.residual ? ExpandStrip<true, true> : ExpandStrip<true, false>;
  subtract(strip, p, q, 1.0f, bypass, out);
}
