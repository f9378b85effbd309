static void To(Half type, const float* acc, int64_t count, float* rest, uint16_t* halves) {
  type == Half::kFloat16 ? ToFloat16s(acc, count, rest, halves)
                         : ToBfloat16s(acc, count, rest, halves);
}

static bool From(Half type, const uint16_t* halves, int64_t count, float factor, float* total) {
  return type == Half::kFloat16 ? FromFloat16s(halves, count, factor, total)
                                : FromBfloat16s(halves, count, factor, total);
}
