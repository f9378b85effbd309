// One pass of numbers, split in l and r, through the network. The
// compiler vectorises these loops by itself.
static void Permute(const uint32_t* table, int64_t rounds, uint32_t a, uint32_t b, int64_t count,
                    uint32_t* __restrict l, uint32_t* __restrict r) {
  for (int64_t round = 0; round < rounds; round += 2) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t sum = l[i] + table[r[i]];
      l[i] = sum >= a ? sum - a : sum;
    }
    table += b;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t sum = r[i] + table[l[i]];
      r[i] = sum >= b ? sum - b : sum;
    }
    table += a;
  }
}
