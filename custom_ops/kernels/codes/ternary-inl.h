// Adds to sixteen sums and sixteen sums of squares what `steps` times sixteen elements give, where
// denormals are zero; returns the bits of the largest magnitude.
static uint32_t AddMoments(const float* x, int64_t steps, double* sums, double* squares) {
  constexpr int kParts = kSums / kDoubles;
  D sum[kParts], square[kParts];
  for (int j = 0; j < kParts; ++j) sum[j] = square[j] = SetD(0.0);
  const U magnitude = SetU(kMagnitude);
  U largest = SetU(0);
  for (int64_t i = 0; i < steps; ++i, x += kSums) {
    for (int j = 0; j < kParts; ++j) {
      const D v = Doubles(x + kDoubles * j);
      sum[j] = AddD(sum[j], v);
      square[j] = AddD(square[j], MulD(v, v));
    }
    for (int j = 0; j < kSums / kLanes; ++j) {
      largest = MaxInt(largest, And(AsU(Load(x + kLanes * j)), magnitude));
    }
  }
  for (int j = 0; j < kParts; ++j) {
    StoreD(sums + kDoubles * j, sum[j]);
    StoreD(squares + kDoubles * j, square[j]);
  }
  return MaxOf(largest);
}

// A word's fraction from its number in base 3, which is exact in double.
static void ToFractions(uint32_t* words) {
  constexpr double kRound = 0x1.8p52;  // adding and subtracting it rounds to an integer
  for (int i = 0; i < kWordsOfGroup; ++i) {
    const double number = static_cast<int32_t>(words[i]);
    words[i] =
        static_cast<uint32_t>(static_cast<int32_t>((number * kFractionOfTrits + kRound) - kRound));
  }
}

// Digits of whole groups, where denormals are zero.
template <bool kIsTrits>
static void EncodeGroups(const TernaryJob& job, const float* x, const uint32_t* random,
                         int64_t groups, uint32_t* words) {
  constexpr int kParts = kWordsOfGroup / kLanes;
  const int digits = static_cast<int>(DigitsOf(job.bits));
  const F clip = Set(job.clip), inverse = Set(job.inverse), one = Set(1.0f);
  const U magnitude = SetU(kMagnitude);
  for (int64_t g = 0; g < groups; ++g, words += kWordsOfGroup) {
    U word[kParts];
    for (int j = 0; j < kParts; ++j) word[j] = SetU(0);
    for (int i = 0; i < digits; ++i) {
      // The first trit is the highest digit, the first field the lowest.
      const int64_t at = kWordsOfGroup * (g * digits + (kIsTrits ? i : digits - 1 - i));
      for (int j = 0; j < kParts; ++j) {
        const U v = AsU(Load(x + at + kLanes * j)), drawn = LoadU(random + at + kLanes * j);
        const F size = Min(Keep(Normal(v), AsF(And(v, magnitude))), clip);
        const F u = Mul(FromInt(ShiftRight<8>(drawn)), Set(0x1p-24f));
        const U sign = SignBits(v);
        const U rounded = ToInt(Min(Add(Mul(size, inverse), u), one));
        const U digit = Sub(Xor(rounded, sign), sign);
        const U raised =
            kIsTrits ? Add(Add(word[j], word[j]), word[j]) : ShiftLeft(word[j], job.bits);
        word[j] = Add(raised, digit);
      }
    }
    for (int j = 0; j < kParts; ++j) StoreU(words + kLanes * j, word[j]);
    if (kIsTrits) ToFractions(words);
  }
}

// The values of whole groups, added to 0 or to what is there. Where kLast, the result is multiplied
// by the job's factor, and the function returns whether all results are finite; else it returns
// true. Denormals must be zero.
template <bool kIsTrits, bool kFirst, bool kLast>
static bool DecodeGroups(const TernaryJob& job, const uint32_t* words, int64_t groups, float* out) {
  const int digits = static_cast<int>(DigitsOf(job.bits));
  const U above = SetU(kSixth), below = SetU(-kSixth);
  const U half = SetU(job.half), bias = SetU(job.bias), mask = SetU(2 * job.half - 1);
  const F scale = Set(job.scale), plus = Set(1.0f), minus = Set(-1.0f), last = Set(job.factor);
  U largest = SetU(0);
  for (int64_t g = 0; g < groups; ++g, words += kWordsOfGroup) {
    for (int j = 0; j < kWordsOfGroup / kLanes; ++j) {
      U word = LoadU(words + kLanes * j);
      if (!kIsTrits) word = Add(word, bias);
      float* to = out + kWordsOfGroup * g * digits + kLanes * j;
      for (int d = 0; d < digits; ++d, to += kWordsOfGroup) {
        F digit;
        if (kIsTrits) {
          digit = Blend(Greater(word, above), plus, Keep(Greater(below, word), minus));
          word = Add(Add(word, word), word);
        } else {
          digit = FromInt(Sub(And(ShiftRight(word, d * job.bits), mask), half));
        }
        F value = Add(kFirst ? Set(0.0f) : Load(to), Mul(digit, scale));
        value = Keep(Normal(AsU(value)), value);
        if (kLast) {
          value = Mul(value, last);
          largest = MaxInt(largest, And(AsU(value), SetU(kMagnitude)));
        }
        Store(to, value);
      }
    }
  }
  return MaxOf(largest) < kInfinity;
}
