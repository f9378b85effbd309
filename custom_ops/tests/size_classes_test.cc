#include "kernels/codes/size_classes.h"

#include <algorithm>
#include <cmath>

#include "garbage.h"

namespace grace {
namespace {

const std::vector<std::vector<int64_t>> kLengths = {
    {1, 2, 31, 32, 33, 2047, 2048, 2049}, {70001, 3, 4097}, {(1 << 21) + 41, 7}};

// A payload of a list for some workers, each part between guards.
struct Payload {
  Payload(const std::vector<int64_t>& lengths, const std::vector<Room>& rooms, int64_t workers)
      : places(ClassPlaces(lengths, rooms)),
        tags(workers * places.back().tags),
        numbers(workers * places.back().numbers),
        counts(workers * places.back().counts) {}
  ClassParts parts() const { return {tags.data(), numbers.data(), counts.data()}; }
  bool Intact() const { return tags.Intact() && numbers.Intact() && counts.Intact(); }
  // The class of element i of tensor t, from worker w.
  int Tag(int64_t w, size_t t, int64_t i) const {
    const uint32_t* own = tags.data() + w * places.back().tags + places[t].tags + i / 32 * 2;
    return (own[0] >> i % 32 & 1) + 2 * (own[1] >> i % 32 & 1);
  }

  std::vector<ClassLengths> places;
  Guarded<uint32_t> tags, numbers;
  Guarded<int32_t> counts;
};

// What worker w sent for tensor t of n elements: the definition, number by number.
std::vector<float> Sent(const Payload& payload, const Room& room, int64_t w, size_t t, int64_t n) {
  const ClassLengths &at = payload.places[t], &row = payload.places.back();
  const uint32_t* numbers = payload.numbers.data() + w * row.numbers + at.numbers;
  const int32_t* told = payload.counts.data() + w * row.counts + at.counts;
  const float unit = std::ldexp(1.0f, std::min(std::max(told[0], 1), 253) - 127);
  const auto count = [](int64_t told, int64_t most) {
    return std::min(std::max<int64_t>(told, 0), most);
  };
  const int64_t wholes = count(told[3], room.words);
  const int64_t halves = count(told[2], 2 * (room.words - wholes));
  const int64_t first_byte = wholes + (halves + 1) / 2;
  const int64_t bytes = count(told[1], 4 * (room.words - first_byte));
  int64_t next[4] = {};
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) {
    const int tag = payload.Tag(w, t, i);
    const int64_t k = next[tag]++;
    if (tag == 1 && k < bytes) {
      const uint32_t byte = numbers[first_byte + k / 4] >> 8 * (k % 4) & 0xff;
      out[i] = float(byte & 0x80 ? -int(byte & 0x7f) : int(byte & 0x7f)) * unit;
    } else if (tag == 2 && k < halves) {
      const uint32_t half = numbers[wholes + k / 2] >> 16 * (k % 2) & 0xffff;
      out[i] = float(half & 0x8000 ? -int(half & 0x7fff) : int(half & 0x7fff)) * unit;
    } else if (tag == 3 && k < wholes) {
      out[i] = SignedFlush(FloatOf(numbers[k]));
    }
  }
  return out;
}

std::vector<Room> Rooms(const std::vector<int64_t>& lengths, double share) {
  std::vector<Room> rooms;
  for (const int64_t n : lengths) {
    rooms.push_back({std::max<int64_t>(1, int64_t(share * n)), n / 100});
  }
  return rooms;
}

// Sent elements are truncated to units. They are larger than those that are not sent, except in one
// exponent, of which only some elements are sent. The numbers fit into the room, whose rest is 0.
void TestEncoder() {
  for (const auto& lengths : kLengths) {
    for (const double share : {1.0, 0.5, 0.2, 0.05}) {
      const std::vector<Room> rooms = Rooms(lengths, share);
      OnEveryIsa([&](const Executor& executor) {
        std::vector<std::vector<float>> xs, residuals;
        std::vector<Guarded<float>> residual_out;
        std::vector<EncodeInput> sources;
        for (const int64_t n : lengths) {
          xs.push_back(Gradient(n));
          for (int64_t i = 0; i < n; ++i) xs.back()[i] *= std::ldexp(1.0f, -int(i % 16));
          residuals.push_back(Gradient(n + 1));
          for (float& x : residuals.back()) x *= 0x1p-6f;
          residual_out.emplace_back(n, n % 3);
        }
        for (size_t t = 0; t < lengths.size(); ++t) {
          sources.push_back(
              {xs[t].data(), residuals[t].data(), residual_out[t].data(), lengths[t]});
        }
        const Payload payload(lengths, rooms, 1);
        const bool finite = EncodeClasses(executor, sources, 1.0f, 24, rooms, 7, payload.parts());
        EXPECT(finite && payload.Intact(), "share %g", share);
        for (size_t t = 0; t < lengths.size(); ++t) {
          const int32_t* counts = payload.counts.data() + payload.places[t].counts;
          const double unit = std::ldexp(1.0, counts[0] - 127);
          const std::vector<float> sent = Sent(payload, rooms[t], 0, t, lengths[t]);
          int64_t found[4] = {};
          int largest_left = 0, smallest_sent = 255;
          bool fits = residual_out[t].Intact();
          for (int64_t i = 0; i < lengths[t]; ++i) {
            const float acc = SignedFlush(SignedFlush(xs[t][i]) + SignedFlush(residuals[t][i]));
            const int tag = payload.Tag(0, t, i), e = BitsOf(acc) >> 23 & 0xff;
            ++found[tag];
            if (tag) {
              smallest_sent = std::min(smallest_sent, e);
            } else {
              largest_left = std::max(largest_left, e);
            }
            const double error = tag == 3 ? 0 : tag ? unit : HUGE_VAL;
            fits &= tag == 3 ? sent[i] == acc : std::fabs(double(acc) - sent[i]) < error;
            fits &= BitsOf(residual_out[t][i]) == BitsOf(SignedFlush(acc - sent[i]));
          }
          const int64_t words = found[3] + (found[2] + 1) / 2 + CeilDiv(found[1], 4);
          fits &= words <= rooms[t].words && largest_left <= smallest_sent;
          for (int i = 1; i < 4; ++i) fits &= found[i] == counts[i];
          for (int64_t i = words; i < rooms[t].words; ++i) {
            fits &= payload.numbers.data()[payload.places[t].numbers + i] == 0;
          }
          EXPECT(fits, "share %g, n = %ld", share, long(lengths[t]));
        }
      });
    }
  }
}

void TestDecoderTakesAnyBits() {
  for (const auto& lengths : kLengths) {
    const std::vector<Room> rooms = Rooms(lengths, 0.25);
    for (const int64_t workers : {1, 3}) {
      Payload payload(lengths, rooms, workers);
      const ClassLengths& row = payload.places.back();
      payload.tags = Garbage<uint32_t>(workers * row.tags, 2);
      payload.numbers = Garbage<uint32_t>(workers * row.numbers, 3);
      payload.counts = Garbage<int32_t>(workers * row.counts, 6);
      for (int i = 0; i < 4; ++i) payload.counts[i] = 100 >> i;
      std::vector<std::vector<float>> wanted;
      for (size_t t = 0; t < lengths.size(); ++t) {
        wanted.emplace_back(lengths[t]);
        for (int64_t w = 0; w < workers; ++w) {
          const auto sent = Sent(payload, rooms[t], w, t, lengths[t]);
          for (int64_t i = 0; i < lengths[t]; ++i) wanted[t][i] = Flush(wanted[t][i] + sent[i]);
        }
        for (float& x : wanted[t]) x = SignedFlush(x * 0.3f);
      }
      OnEveryIsa([&](const Executor& executor) {
        Outputs outputs(lengths);
        const bool finite =
            DecodeClasses(executor, outputs.targets, rooms, payload.parts(), workers, 0.3f);
        EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%ld workers", long(workers));
      });
    }
  }
}

void TestWhatIsNotFinite() {
  for (const uint32_t bad : {0x7f800000u, 0xff800000u, 0x7fc00000u}) {
    OnEveryIsa([&](const Executor& executor) {
      std::vector<float> x(5000, 1.0f);
      x[4999] = FloatOf(bad);
      const std::vector<Room> rooms = Rooms({5000}, 1.0);
      const Payload payload({5000}, rooms, 1);
      EXPECT(!EncodeClasses(executor, {{x.data(), nullptr, nullptr, 5000}}, 1.0f, 24, rooms, 0,
                            payload.parts()),
             " ");
    });
  }
}

}  // namespace
}  // namespace grace

int main() {
  grace::TestEncoder();
  grace::TestDecoderTakesAnyBits();
  grace::TestWhatIsNotFinite();
  return grace::Finish("size classes");
}
