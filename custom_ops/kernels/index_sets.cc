#include "index_sets.h"

#include <algorithm>

#include "scatter_list.h"
#include "words.h"

#define GRACE_KERNEL "each/index_sets.h"
#include "each_isa.h"

namespace grace {

IndexLayout::IndexLayout(int64_t n, int64_t k) : n(n), k(k), plain(false), low(0) {
  while (k << (low + 1) <= n) ++low;
  low_words = CeilDiv(k * low, 32);
  upper_bits = k + ((n - 1) >> low);
  words = low_words + CeilDiv(upper_bits, 32);
  if (CeilDiv(n, 32) > words) return;
  plain = true;
  low = 0;
  low_words = 0;
  upper_bits = n;
  words = CeilDiv(n, 32);
}

IndexLayouts::IndexLayouts(const std::vector<int64_t>& lengths, const std::vector<int64_t>& ks)
    : words(1, 0), entries(1, 0) {
  for (size_t i = 0; i < ks.size(); ++i) {
    each.emplace_back(lengths[i], ks[i]);
    words.push_back(words.back() + each.back().words);
    entries.push_back(entries.back() + ks[i]);
  }
}

namespace {

// Some words [first, last) of the bitmap of one tensor and worker.
struct Piece {
  int64_t worker, tensor, first, last;
};

std::vector<Piece> Pieces(const IndexLayouts& layouts, int64_t workers) {
  constexpr int64_t kWords = 512;
  std::vector<Piece> pieces;
  const int64_t tensors = layouts.each.size();
  for (int64_t w = 0; w < workers; ++w) {
    for (int64_t i = 0; i < tensors; ++i) {
      const int64_t size = CeilDiv(layouts.each[i].upper_bits, 32);
      for (int64_t first = 0; first < size; first += kWords) {
        pieces.push_back({w, i, first, std::min(size, first + kWords)});
      }
    }
  }
  return pieces;
}

constexpr int64_t kPiecesAtOnce = 4;

// Writes words [first, last) of the bitmap of some ascending indices.
void WriteBitmap(const IndexLayout& layout, const int32_t* indices, int64_t used, int64_t first,
                 int64_t last, uint32_t* bitmap) {
  std::fill(bitmap + first, bitmap + last, 0);
  const int64_t step = layout.plain ? 0 : 1;
  const auto place = [&](int64_t i) { return (indices[i] >> layout.low) + step * i; };
  // The first entry in these words: places ascend strictly.
  int64_t low = 0, high = used;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (place(middle) < 32 * first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // A word is written once all its bits are known.
  int64_t word = first;
  uint32_t bits = 0;
  for (int64_t i = low; i < used; ++i) {
    const int64_t at = place(i);
    if (at >> 5 != word) {
      bitmap[word] = bits;
      if (at >= 32 * last) return;
      word = at >> 5;
      bits = 0;
    }
    bits |= 1u << (at & 31);
  }
  bitmap[word] = bits;
}

}  // namespace

std::string PackIndexList(const Executor& executor, const IndexLayouts& layouts,
                          const int32_t* indices, const int32_t* counts, uint32_t* words) {
  std::vector<int64_t> lengths, ks;
  for (const IndexLayout& layout : layouts.each) {
    lengths.push_back(layout.n);
    ks.push_back(layout.k);
  }
  std::string fault = IndexFault(executor, lengths, {nullptr, indices, counts, 1, ks});
  if (!fault.empty()) return fault;
  const auto pack_low = GRACE_CHOOSE(PackLow);
  const std::vector<Piece> pieces = Pieces(layouts, 1);
  executor.For(pieces.size(), kPiecesAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[p];
      const IndexLayout& layout = layouts.each[piece.tensor];
      const int32_t* own = indices + layouts.entries[piece.tensor];
      uint32_t* out = words + layouts.words[piece.tensor];
      const int64_t used =
          counts ? std::clamp<int64_t>(counts[piece.tensor], 0, layout.k) : layout.k;
      WriteBitmap(layout, own, used, piece.first, piece.last, out + layout.low_words);
      if (layout.plain) continue;
      // The low bits of as large a share of the entries; 32 entries take whole words.
      const int64_t groups = CeilDiv(layout.k, 32), size = CeilDiv(layout.upper_bits, 32);
      const int64_t from = groups * piece.first / size, until = groups * piece.last / size;
      const int64_t first = 32 * from, last = std::min(layout.k, 32 * until);
      const int64_t most = std::max<int64_t>(0, last - first);
      const int64_t count = std::clamp<int64_t>(used - first, 0, most);
      uint32_t* low = out + layout.low * from;
      pack_low(own + first, count, layout.low, low);
      std::fill(low + CeilDiv(count * layout.low, 32),
                out + std::min(layout.low_words, layout.low * until), 0);
    }
  });
  return {};
}

void UnpackIndexList(const Executor& executor, const IndexLayouts& layouts, const uint32_t* words,
                     int64_t workers, int32_t* indices) {
  const auto count_bits = GRACE_CHOOSE(CountBits);
  const auto unpack = GRACE_CHOOSE(UnpackSets);
  const std::vector<Piece> pieces = Pieces(layouts, workers);
  const auto bitmap = [&](const Piece& piece) {
    return words + piece.worker * layouts.words.back() + layouts.words[piece.tensor] +
           layouts.each[piece.tensor].low_words;
  };
  // The rank of the first bit of each piece.
  std::vector<int64_t> ranks(pieces.size());
  executor.For(pieces.size(), kPiecesAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      ranks[p] = count_bits(bitmap(pieces[p]) + pieces[p].first, pieces[p].last - pieces[p].first);
    }
  });
  int64_t before = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].first == 0) before = 0;
    const int64_t own = ranks[p];
    ranks[p] = before;
    before += own;
  }
  executor.For(pieces.size(), kPiecesAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[p];
      const IndexLayout& layout = layouts.each[piece.tensor];
      int32_t* own =
          indices + piece.worker * layouts.entries.back() + layouts.entries[piece.tensor];
      const uint32_t* upper = bitmap(piece);
      const bool ends = 32 * piece.last >= layout.upper_bits;
      const uint32_t last = ends ? GroupMask(layout.upper_bits - 32 * (piece.last - 1)) : ~0u;
      int64_t rank = std::min(ranks[p], layout.k);
      rank = unpack(layout, upper - layout.low_words, upper + piece.first, 32 * piece.first,
                    piece.last - piece.first, last, rank, own);
      if (ends) std::fill(own + rank, own + layout.k, static_cast<int32_t>(layout.n));
    }
  });
}

}  // namespace grace
