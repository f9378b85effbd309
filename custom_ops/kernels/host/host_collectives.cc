#include "kernels/host/host_collectives.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/dispatch.h"
#include "kernels/base/list.h"

namespace grace {
namespace {

// Where a piece of n numbers begins, or all end: at a cache line, where there are enough of them.
int64_t PieceBegin(int64_t n, int64_t pieces, int64_t piece) {
  const int64_t unit = n >= 4 * kLine * pieces ? kLine : 1, units = CeilDiv(n, unit);
  return std::min(n, unit * (units / pieces * piece + std::min(piece, units % pieces)));
}

// A list as one row of numbers.
class Row {
 public:
  Row(const std::vector<Summand>& list, const Adder& adder)
      : list_(list), adder_(adder), starts_(Offsets(Lengths(list))) {}

  int64_t total() const { return starts_.back(); }

  // Calls body(own, sum, at, count) for blocks within one tensor; `at` counts from `begin`.
  template <class Body>
  void For(int64_t begin, int64_t end, const Body& body) const {
    size_t i = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
    for (int64_t at = begin; at < end; ++i) {
      const int64_t until = std::min(end, starts_[i + 1]);
      const auto* own = static_cast<const char*>(list_[i].own);
      auto* sum = static_cast<char*>(list_[i].sum);
      while (at < until) {
        const int64_t count = std::min(kHostBlock, until - at);
        const int64_t offset = (at - starts_[i]) * adder_.own_bytes;
        body(own + offset, sum + offset, at - begin, count);
        at += count;
      }
    }
  }

  void Pack(int64_t begin, int64_t end, char* shared) const {
    For(begin, end, [&](const char* own, char*, int64_t at, int64_t count) {
      char* to = shared + at * adder_.shared_bytes;
      if (adder_.pack) return adder_.pack(own, count, to);
      std::memcpy(to, own, count * adder_.shared_bytes);
    });
  }

  void Unpack(int64_t begin, int64_t end, const char* shared) const {
    For(begin, end, [&](const char*, char* sum, int64_t at, int64_t count) {
      Unpacked(shared + at * adder_.shared_bytes, count, sum);
    });
  }

  // `rooms` are those of all places, of this numbers; that of `place` is not read.
  void AddUp(int64_t begin, int64_t end, std::vector<const char*> rooms, int place,
             char* result) const {
    alignas(64) char packed[kHostBlock * sizeof(float)];
    const int places = static_cast<int>(rooms.size());
    const void* parts[kMostPlaces];
    For(begin, end, [&](const char* own, char* sum, int64_t at, int64_t count) {
      const int64_t offset = at * adder_.shared_bytes;
      for (int i = 0; i < places; ++i) parts[i] = rooms[i] + offset;
      parts[place] = own;
      if (adder_.pack) {
        adder_.pack(own, count, packed);
        parts[place] = packed;
      }
      adder_.add(parts, places, count, result + offset);
      Unpacked(result + offset, count, sum);
    });
  }

 private:
  void Unpacked(const char* shared, int64_t count, char* sum) const {
    if (adder_.unpack) return adder_.unpack(shared, count, sum);
    std::memcpy(sum, shared, count * adder_.shared_bytes);
  }

  const std::vector<Summand>& list_;
  const Adder& adder_;
  std::vector<int64_t> starts_;
};

}  // namespace

void HostCollectives::AwaitAll(Counter Progress::* counter, int64_t wanted,
                               Deadline deadline) const {
  for (int place = 0; place < segment_.places(); ++place) {
    if (place == place_) continue;
    segment_.Await(segment_.progress(place).*counter, static_cast<uint32_t>(wanted), deadline);
  }
}

void HostCollectives::Raise(Counter Progress::* counter, int64_t to) const {
  (segment_.progress(place_).*counter).Raise(static_cast<uint32_t>(to));
}

void HostCollectives::Sum(const std::vector<Summand>& list, NumberType type, Deadline deadline) {
  const DenormalsAreZero scope;
  const Adder& adder = AdderOf(type);
  const Row row(list, adder);
  const int64_t each = kHostChunk / adder.shared_bytes, chunks = CeilDiv(row.total(), each);
  const int places = segment_.places();
  // Calls body(begin, end, at) for the piece of a place; `at` is where it lies in a chunk's room.
  const auto piece = [&](int64_t chunk, int place, const auto& body) {
    const int64_t first = chunk * each, n = std::min(each, row.total() - first);
    const int64_t begin = PieceBegin(n, places, place), end = PieceBegin(n, places, place + 1);
    body(first + begin, first + end, begin * adder.shared_bytes);
  };
  const auto write = [&](int64_t chunk, int64_t number) {
    // Who has read a chunk of so many before has left its room.
    AwaitAll(&Progress::read, number + 1 - kHostDepth, deadline);
    char* room = segment_.Chunk(place_, number);
    for (int place = 0; place < places; ++place) {
      if (place == place_) continue;
      piece(chunk, place, [&](int64_t b, int64_t e, int64_t at) { row.Pack(b, e, room + at); });
    }
    Raise(&Progress::written, number + 1);
  };
  const auto add_up = [&](int64_t chunk, int64_t number) {
    // Who has written this chunk has taken the results of kHostDepth chunks before: the room of
    // results is free.
    AwaitAll(&Progress::written, number + 1, deadline);
    piece(chunk, place_, [&](int64_t begin, int64_t end, int64_t at) {
      std::vector<const char*> rooms(places);
      for (int place = 0; place < places; ++place)
        rooms[place] = segment_.Chunk(place, number) + at;
      row.AddUp(begin, end, rooms, place_, segment_.Chunk(places, number) + at);
    });
    Raise(&Progress::read, number + 1);
  };
  const auto take = [&](int64_t chunk, int64_t number) {
    AwaitAll(&Progress::read, number + 1, deadline);
    const char* room = segment_.Chunk(places, number);
    for (int place = 0; place < places; ++place) {
      if (place == place_) continue;
      piece(chunk, place, [&](int64_t b, int64_t e, int64_t at) { row.Unpack(b, e, room + at); });
    }
  };
  static_assert(kHostDepth >= 3, "A chunk is written while others are added up and taken.");
  for (int64_t step = 0; step < chunks + 2 && chunks; ++step) {
    const int64_t number = chunks_ + step;
    if (step < chunks) write(step, number);
    if (step >= 1 && step <= chunks) add_up(step - 1, number - 1);
    if (step >= 2) take(step - 2, number - 2);
  }
  chunks_ += chunks;
}

void HostCollectives::Join(const Joined& joined, Deadline deadline) {
  const int places = segment_.places();
  const std::vector<int64_t>& begins = joined.begins;
  const auto length = [&](int place) {  // bytes of a row of a piece
    return (begins[place + 1] - begins[place]) * joined.bytes;
  };
  // Puts a stretch of the rows of a piece where it belongs.
  const auto put = [&](int place, int64_t begin, int64_t end, const char* from) {
    const int64_t columns = length(place), stride = begins[places] * joined.bytes;
    char* first = static_cast<char*>(joined.whole) + begins[place] * joined.bytes;
    for (int64_t at = begin; at < end;) {
      const int64_t count = std::min(end, (at / columns + 1) * columns) - at;
      std::memcpy(first + at / columns * stride + at % columns, from + (at - begin), count);
      at += count;
    }
  };
  int64_t chunks = 0;
  for (int place = 0; place < places; ++place) {
    chunks = std::max(chunks, CeilDiv(joined.rows * length(place), kHostChunk));
  }
  const auto* mine = static_cast<const char*>(joined.own);
  put(place_, 0, joined.rows * length(place_), mine);
  const auto piece = [&](int64_t chunk, int place) {  // how many bytes of a chunk a place has
    const int64_t left = joined.rows * length(place) - chunk * kHostChunk;
    return std::max<int64_t>(0, std::min(kHostChunk, left));
  };
  for (int64_t step = 0; step < chunks + 1 && chunks; ++step) {
    const int64_t number = chunks_ + step;
    if (step < chunks) {
      AwaitAll(&Progress::read, number + 1 - kHostDepth, deadline);
      if (const int64_t bytes = piece(step, place_)) {
        std::memcpy(segment_.Chunk(place_, number), mine + step * kHostChunk, bytes);
      }
      Raise(&Progress::written, number + 1);
    }
    if (step >= 1) {
      AwaitAll(&Progress::written, number, deadline);
      const int64_t begin = (step - 1) * kHostChunk;
      for (int place = 0; place < places; ++place) {
        if (place == place_) continue;
        put(place, begin, begin + piece(step - 1, place), segment_.Chunk(place, number - 1));
      }
      Raise(&Progress::read, number);
    }
  }
  chunks_ += chunks;
}

}  // namespace grace
