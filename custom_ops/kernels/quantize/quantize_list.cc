#include "kernels/quantize/quantize_list.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/base/list.h"
#include "kernels/base/words.h"
#include "kernels/quantize/quantize_range.h"

namespace grace {
namespace {

class Encoder {
 public:
  Encoder(const Executor& executor, const std::vector<Encoded>& list, const ListCode& code,
          const PhiloxKey* key)
      : executor_(executor), list_(list), code_(code), key_(key), loop_(LoopOver(list)) {}

  bool Run() {
    const int64_t block = code_.quantization.block;
    // Where both a block and a group of words begin.
    const int64_t both = block && block <= kChunk ? std::lcm(block, kGroup) : 0;
    if (both && both <= kChunk) {
      AtOnce(both);
    } else {
      Scales();
      Codes();
    }
    return finite_;
  }

 private:
  // Each chunk holds whole blocks: its scales, codes and remainder while it is in the cache.
  void AtOnce(int64_t both) {
    const int64_t chunk = kChunk / both * both, block = code_.quantization.block;
    loop_.For(executor_, CutAt{both}, [&](size_t i, int64_t begin, int64_t end) {
      alignas(64) float room[kChunk];
      const Encoded& own = list_[i];
      const PhiloxSchedule schedule(KeyOf(own));
      for (int64_t at = begin; at < end; at += chunk) {
        const int64_t n = std::min(chunk, end - at);
        const float* x = own.source.At(at, n, room);
        for (int64_t b = 0; b < n; b += block) {
          const Measure measure = MeasureOf(x + b, std::min(block, n - b), code_.norm);
          const int64_t floats = code_.quantization.Floats();
          PutScale(measure, code_.norm, own.scales + floats * ((at + b) / block));
          if (!IsFinite(measure, code_.norm)) finite_.store(false, std::memory_order_relaxed);
        }
        QuantizeJob job = JobOf(own, schedule);
        if (at + n < end) job.next[0] = own.source.x + at + n;
        if (at + n < end && own.source.residual) job.next[1] = own.source.residual + at + n;
        QuantizeRange(job, at, at + n, x, own.words, own.residual_out);
      }
    });
  }

  // Blocks that do not fit into chunks: first all scales,
  void Scales() {
    std::vector<Scaled> list;
    for (const Encoded& own : list_) {
      list.push_back({own.source, own.n, code_.BlockOf(own.n), own.scales});
    }
    if (!ScalesList(executor_, list, code_.norm)) finite_ = false;
  }

  // then all codes.
  void Codes() {
    loop_.For(executor_, CutAt{kGroup}, [&](size_t i, int64_t begin, int64_t end) {
      alignas(64) float room[kChunk];
      const Encoded& own = list_[i];
      const PhiloxSchedule schedule(KeyOf(own));
      for (int64_t at = begin; at < end; at += kChunk) {
        const int64_t n = std::min(kChunk, end - at);
        QuantizeRange(JobOf(own, schedule), at, at + n, own.source.At(at, n, room), own.words,
                      own.residual_out);
      }
    });
  }

  PhiloxKey KeyOf(const Encoded& own) const {
    PhiloxKey key = key_ ? *key_ : PhiloxKey{};
    key.variable_draw = own.variable_draw;
    return key;
  }

  QuantizeJob JobOf(const Encoded& own, const PhiloxSchedule& schedule) const {
    Quantization quantization = code_.quantization;
    quantization.block = code_.BlockOf(own.n);
    return {own.scales, own.n, quantization, key_ ? &schedule : nullptr, {}, own.stratum};
  }

  const Executor& executor_;
  const std::vector<Encoded>& list_;
  const ListCode& code_;
  const PhiloxKey* key_;
  const ListLoop loop_;
  std::atomic<bool> finite_{true};
};

}  // namespace

bool QuantizeList(const Executor& executor, const std::vector<Encoded>& list, const ListCode& code,
                  const PhiloxKey* key) {
  return Encoder(executor, list, code, key).Run();
}

}  // namespace grace
