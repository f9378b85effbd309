// The low `bits` bits, 1 to 30, of each of `count` indices, one after another, in whole words.
static void PackLow(const int32_t* indices, int64_t count, int bits, uint32_t* words) {
  const uint32_t mask = (1u << bits) - 1;
  uint64_t held = 0;
  int filled = 0;
  for (int64_t i = 0; i < count; ++i) {
    held |= static_cast<uint64_t>(static_cast<uint32_t>(indices[i]) & mask) << filled;
    filled += bits;
    if (filled >= 32) {
      *words++ = static_cast<uint32_t>(held);
      held >>= 32;
      filled -= 32;
    }
  }
  if (filled > 0) *words = static_cast<uint32_t>(held);
}

// How many bits are set in so many words.
static int64_t CountBits(const uint32_t* words, int64_t count) {
  int64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits += __builtin_popcount(words[i]);
  return bits;
}

// Entries from `rank` on, out of `count` words of a bitmap whose first bit is number `bit`; of the
// last of them the bits in `last` alone count. Returns the rank of the first entry that it did not
// reach.
static int64_t UnpackSets(const IndexLayout& layout, const uint32_t* low, const uint32_t* bitmap,
                          int64_t bit, int64_t count, uint32_t last, int64_t rank,
                          int32_t* indices) {
  const int64_t most = (layout.n - 1) >> layout.low;
  const uint32_t mask = (1u << layout.low) - 1;
  const int64_t from = rank;
  for (int64_t w = 0; w < count && rank < layout.k; ++w, bit += 32) {
    uint32_t word = w + 1 == count ? bitmap[w] & last : bitmap[w];
    for (; word && rank < layout.k; word &= word - 1, ++rank) {
      indices[rank] = static_cast<int32_t>(bit + __builtin_ctz(word));
    }
  }
  if (layout.plain) return rank;
  for (int64_t i = from; i < rank; ++i) {
    // There is a word of the bitmap after the last word of low bits.
    const int64_t at = i * layout.low;
    const uint64_t pair = low[at >> 5] | static_cast<uint64_t>(low[(at >> 5) + 1]) << 32;
    const int64_t upper = indices[i] - i;
    const int64_t index =
        upper << layout.low | static_cast<int64_t>(pair >> (at & 31) & mask);
    const bool inside = (upper <= most) & (index < layout.n);
    indices[i] = static_cast<int32_t>(inside ? index : layout.n);
  }
  return rank;
}
