// Copies lines to where a line begins, past the caches where the processor can.
static void CopyLines(const char* from, int64_t lines, char* to) {
  for (int64_t i = 0; i < kLine * lines; i += kLine) Stream(from + i, to + i);
}

// Makes what CopyLines wrote visible to other threads.
static void EndLines() { EndStreams(); }
