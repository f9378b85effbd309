// The factor of each vector of the group at element i.
template <class Factors>
GRACE_INLINE void FactorsOf(Factors& blocks, int64_t i, F* factors) {
  float each[kGroup];
  const bool uniform = blocks.Uniform(i);
  if (!uniform) blocks.Group(i, each);
  for (int j = 0; j < kGroup / kLanes; ++j) {
    factors[j] = uniform ? Set(blocks.factor()) : Load(each + kLanes * j);
  }
}
