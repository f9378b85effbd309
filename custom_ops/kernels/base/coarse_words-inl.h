// Whole batches of coarse words from block `first` on, of which 8 * first begins a group.
static void CoarseBatches(const PhiloxSchedule& schedule, uint64_t first, int64_t batches,
                          uint32_t* out) {
  for (int64_t i = 0; i < batches; ++i) {
    CoarseBatch(schedule, first + kBatchBlocks * i, out + kCoarseBatch * i);
  }
}
