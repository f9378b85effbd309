// The digits of ternary.h on the device.
#pragma once

#include "kernels/base/device/cuda.h"
#include "kernels/codes/ternary.h"

namespace grace {

// Where the digits of a piece lie, whose groups are whole but for the last of the tensor.
class Digits {
 public:
  __device__ Digits(int64_t n, int32_t digits)
      : group_(static_cast<int32_t>(kWordsOfGroup) * digits),
        n_(static_cast<int32_t>(n)),
        whole_(n_ / group_ * group_),
        inverse_(Inverted(group_)) {
    rest_words_ = (n_ - whole_ + digits - 1) / digits;
    rest_inverse_ = rest_words_ ? Inverted(rest_words_) : 0;
  }
  // The words of the piece.
  __device__ int32_t Words() const {
    return whole_ / group_ * static_cast<int32_t>(kWordsOfGroup) + rest_words_;
  }
  __device__ void Find(int32_t place, int32_t* word, int32_t* digit) const {
    const int32_t g = Quotient(place, inverse_), within = place - g * group_;
    const bool last = place >= whole_;
    *digit = last ? Quotient(within, rest_inverse_) : within / kWidth;
    *word = g * kWidth + within - *digit * (last ? rest_words_ : kWidth);
  }
  // The place of digit d of a word is first + d * step; those from the end on are of no element.
  __device__ void Walk(int32_t word, int32_t* first, int32_t* step) const {
    const int32_t g = word / kWidth;
    *first = g * group_ + word % kWidth;
    *step = g * group_ < whole_ ? kWidth : rest_words_;
  }

 private:
  static constexpr int32_t kWidth = kWordsOfGroup;
  // Below 4096 a product with this, shifted by 24, is the quotient.
  __device__ static uint32_t Inverted(int32_t by) { return ((1u << 24) + by - 1) / by; }
  __device__ static int32_t Quotient(int32_t a, uint32_t inverse) {
    return static_cast<int32_t>(static_cast<uint64_t>(a) * inverse >> 24);
  }

  const int32_t group_, n_, whole_;
  const uint32_t inverse_;
  int32_t rest_words_;
  uint32_t rest_inverse_;
};

}  // namespace grace
