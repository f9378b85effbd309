#include "kernels/base/device/accumulate.h"
#include "kernels/base/device/launch.h"
#include "kernels/signs/signs.h"

namespace grace {
namespace {

struct SignItem {
  DeviceInput source;
  uint32_t* words;
  int64_t n, first;
};

// A block packs the signs of one piece.
__global__ void __launch_bounds__(kThreads)
    PackPieces(Table<SignItem> table, float multiplier, bool* finite) {
  const auto [own, begin, n] = table.Piece();
  float acc[kEach];
  LoadPiece(own.source, multiplier, begin, n, -1.0f, acc);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int at = PlaceOf(j);
    const uint32_t word = __ballot_sync(kAllLanes, NotNegativeBits(acc[j]));
    if (Lane() == 0 && at < n) own.words[(begin + at) / kGroup] = word;
  }
  NotePiece(acc, n, finite);
}

struct VoteItem {
  const uint32_t* words;
  float* total;
  int64_t n, first;
};

// Each of the first kEach lanes reads the word of one group. Then every lane gets the words of all
// groups. In each word it counts the bit whose number is the lane's.
__global__ void __launch_bounds__(kThreads)
    VotePieces(Table<VoteItem> table, int32_t workers, int64_t stride, float factor) {
  const auto [own, begin, n] = table.Piece();
  const float positive = MulZ(1.0f, factor), tie = MulZ(0.0f, factor);
  const int group = WarpOf() * kEach + Lane();
  const bool reads = Lane() < kEach && group * kGroup < n;
  const uint32_t* words = own.words + begin / kGroup + group;
  int32_t votes[kEach] = {};
  for (int32_t w = 0; w < workers; ++w, words += stride) {
    const uint32_t read = reads ? *words : 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) votes[j] += __shfl_sync(kAllLanes, read, j) >> Lane() & 1;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool tied = 2 * votes[j] == workers;
    const float total = tied ? tie : 2 * votes[j] > workers ? positive : MulZ(-1.0f, factor);
    if (PlaceOf(j) < n) own.total[begin + PlaceOf(j)] = total;
  }
}

}  // namespace
}  // namespace grace

using namespace grace;

GRACE_EXPORT int grace_cuda_sign_list(const EncodeInput* list, int64_t count, float multiplier,
                                      uint32_t* words, bool* finite, void* workspace, size_t* bytes,
                                      void* stream) {
  const auto next = [&](int64_t i, int64_t first) {
    const EncodeInput& own = list[i];
    const SignItem item{{own.x, own.residual}, words, own.n, first};
    words += SignWords(own.n);
    return item;
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(PackPieces, count, next, finite, multiplier, finite);
}

GRACE_EXPORT int grace_cuda_vote_list(const uint32_t* words, int64_t workers,
                                      const DecodeOutput* list, int64_t count, float factor,
                                      void* workspace, size_t* bytes, void* stream) {
  int64_t stride = 0;
  for (int64_t i = 0; i < count; ++i) stride += SignWords(list[i].n);
  const auto next = [&](int64_t i, int64_t first) {
    const VoteItem item{words, list[i].total, list[i].n, first};
    words += SignWords(list[i].n);
    return item;
  };
  return Launch(workspace, bytes, stream)
      .RunPieces(VotePieces, count, next, nullptr, static_cast<int32_t>(workers), stride, factor);
}
