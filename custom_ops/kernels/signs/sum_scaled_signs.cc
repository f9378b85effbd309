#include <algorithm>

#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "kernels/signs/scaled_signs.h"

#define GRACE_KERNEL "kernels/signs/sum_scaled_signs-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {

bool SumScaledSignList(const Executor& executor, const ScaledRows& rows,
                       const std::vector<Cells>& cells, const std::vector<DecodeOutput>& targets,
                       float factor) {
  std::vector<int64_t> words_at{0}, levels_at{0};
  for (size_t i = 0; i < targets.size(); ++i) {
    words_at.push_back(words_at[i] + PackedWords(targets[i].n, 1));
    levels_at.push_back(levels_at[i] + cells[i].Count(targets[i].n));
  }
  const auto add = GRACE_CHOOSE(AddSigns<true>), add_each = GRACE_CHOOSE(AddSigns<false>);
  const Compensate times = ChooseCompensate();
  return DecodeChunks(
      executor, targets, CutAt{kChunk}, [&](size_t i, int64_t at, int64_t n, float* total) {
        alignas(64) float low[kChunk], high[kChunk];
        const bool one = cells[i].OneForChunk();
        const int64_t groups = CeilDiv(n, kGroup), levels = one ? 1 : groups * kGroup;
        for (int64_t w = 0; w < rows.workers; ++w) {
          const int64_t own = w * rows.levels_stride + levels_at[i];
          const auto spread = [&](const float* from, float* to) {
            if (one) {
              *to = from[own + cells[i].Of(at)];
            } else {
              cells[i].Spread(from + own, at, n, to);
              std::fill(to + n, to + levels, 0.0f);
            }
          };
          spread(rows.high, high);
          if (rows.low) {
            spread(rows.low, low);
          } else {
            for (int64_t k = 0; k < levels; ++k) low[k] = 0.0f - high[k];
          }
          const uint32_t* words = rows.words + w * rows.words_stride + words_at[i] + at / kGroup;
          (one ? add : add_each)(words, low, high, groups, w == 0, total);
        }
        return times(total, nullptr, factor, n, total);
      });
}

}  // namespace grace
