// The low `bits` bits, 1 to 30, of each of `count` indices, one after another, in whole words.
static void PackLow(const int32_t* indices, int64_t count, int bits, uint32_t* words) {
  const uint64_t mask = (1u << bits) - 1;
  uint64_t held = 0;
  int filled = 0;
  int64_t i = 0;
  const auto append = [&](uint64_t more, int size) {
    held |= more << filled;
    filled += size;
    // Written in any case, which costs less than a branch.
    *words = static_cast<uint32_t>(held);
    const int full = filled >> 5;
    words += full;
    held >>= 32 * full;
    filled &= 31;
  };
  if (bits <= 16) {
    for (; i + 2 <= count; i += 2) {
      append((indices[i] & mask) | (indices[i + 1] & mask) << bits, 2 * bits);
    }
  }
  for (; i < count; ++i) append(indices[i] & mask, bits);
  if (filled > 0) *words = static_cast<uint32_t>(held);
}

// Writes the words of a bitmap in which entries [begin, end), and no others, set their bits: entry
// i sets bit (indices[i] >> low) + step * i. These bits ascend.
static void SetBits(const int32_t* indices, int64_t begin, int64_t end, int low, uint32_t step,
                    uint32_t* bitmap) {
  uint32_t word = 0, bits = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t at =
        (static_cast<uint32_t>(indices[i]) >> low) + step * static_cast<uint32_t>(i);
    // A mask is quicker than a branch, which the processor would often predict wrongly.
    bits &= -static_cast<uint32_t>(at >> 5 == word);
    bits |= 1u << (at & 31);
    word = at >> 5;
    bitmap[word] = bits;
  }
}

// How many bits are set before each `kWordsAtOnce` words of a bitmap.
static void CountBefore(const uint32_t* bitmap, int64_t size, int32_t* before) {
  int32_t bits = 0;
  for (int64_t b = 0; b < size; ++b) {
    before[b] = bits;
    // The last words may be fewer, and nothing comes after them.
    if (b + 1 == size) return;
    for (int64_t i = 0; i < kWordsAtOnce; ++i) {
      bits += __builtin_popcount(bitmap[b * kWordsAtOnce + i]);
    }
  }
}

// The places of the bits set in words [first, last) of a bitmap of that many bits; returns how many
// they are. May write up to kSlack elements beyond.
static int64_t FindBits(const uint32_t* bitmap, int64_t first, int64_t last, int64_t bits,
                        uint32_t* places) {
  const U step = SetU(kLanes);
  U at = Add(SetU(static_cast<uint32_t>(32 * first)), Lanes());
  int64_t count = 0;
  for (int64_t w = first; w < last; ++w) {
    uint32_t word = bitmap[w] & GroupMask(bits - 32 * w);
    // Vectors this short cost more than they gain.
    for (; kLanes < 8 && word; word &= word - 1) {
      places[count++] = static_cast<uint32_t>(32 * w + __builtin_ctz(word));
    }
    for (int lane = 0; kLanes >= 8 && lane < 32; lane += kLanes) {
      const uint32_t own = word >> lane & GroupMask(kLanes);
      StoreU(places + count, Compress(MaskOf(own), at));
      count += __builtin_popcount(own);
      at = Add(at, step);
    }
  }
  return count;
}

// So many numbers of `bits` bits each, 1 to 30, the first from bit `from` of the words on. There is
// a word after the last of theirs.
static void UnpackLow(const uint32_t* words, int64_t from, int64_t count, int bits,
                      uint32_t* numbers) {
  const uint32_t mask = (1u << bits) - 1;
  words += from >> 5;
  auto bit = static_cast<uint32_t>(from & 31);
  for (int64_t j = 0; j < count; ++j, bit += bits) {
    uint64_t pair;
    std::memcpy(&pair, words + (bit >> 5), sizeof pair);
    numbers[j] = static_cast<uint32_t>(pair >> (bit & 31)) & mask;
  }
}

// The entries of words [first, last) of the bitmap of a set, at most kWordsAtOnce, in which the
// first bit set is entry `rank`; returns how many they are. May write up to kSlack elements beyond.
static int64_t ReadEntries(const IndexLayout& layout, const uint32_t* words, int64_t first,
                           int64_t last, int64_t rank, int32_t* entries) {
  auto* places = reinterpret_cast<uint32_t*>(entries);
  const int64_t found = FindBits(words + layout.low_words, first, last, layout.upper_bits, places);
  const int64_t count = std::clamp<int64_t>(layout.k - rank, 0, found);
  if (layout.plain) return count;
  uint32_t lower[32 * kWordsAtOnce];
  UnpackLow(words, rank * layout.low, count, layout.low, lower);
  const int low = layout.low;
  const auto n = static_cast<uint32_t>(layout.n), most = (n - 1) >> low;
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t upper = places[j] - static_cast<uint32_t>(rank + j);
    const uint32_t index = upper << low | lower[j];
    places[j] = upper <= most && index < n ? index : n;
  }
  return count;
}
