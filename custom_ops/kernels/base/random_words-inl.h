// Whole batches of words from block `first` on.
static void RandomBatches(const PhiloxSchedule& schedule, uint64_t first, int64_t batches,
                          uint32_t* out) {
  for (int64_t i = 0; i < batches; ++i) {
    PhiloxBatch(schedule, first + kBatchBlocks * i, out + kBatch * i);
  }
}
