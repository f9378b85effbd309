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
        bytes(workers * places.back().bytes),
        halves(workers * places.back().halves),
        wholes(workers * places.back().wholes),
        counts(workers * places.back().counts) {}
  ClassParts parts() const {
    return {tags.data(), bytes.data(), halves.data(), wholes.data(), counts.data()};
  }
  bool Intact() const {
    return tags.Intact() && bytes.Intact() && halves.Intact() && wholes.Intact() && counts.Intact();
  }
  // The class of element i of tensor t, from worker w.
  int Tag(int64_t w, size_t t, int64_t i) const {
    const uint32_t* own = tags.data() + w * places.back().tags + places[t].tags + i / 32 * 2;
    return (own[0] >> i % 32 & 1) + 2 * (own[1] >> i % 32 & 1);
  }

  std::vector<ClassLengths> places;
  Guarded<uint32_t> tags, bytes, halves;
  Guarded<float> wholes;
  Guarded<int32_t> counts;
};

// What worker w sent for tensor t of n elements: the definition, number by number.
std::vector<float> Sent(const Payload& payload, ErrorBound bound, const Room& room, int64_t w,
                        size_t t, int64_t n) {
  const ClassLengths &at = payload.places[t], &row = payload.places.back();
  const auto* bytes =
      reinterpret_cast<const uint8_t*>(payload.bytes.data() + w * row.bytes + at.bytes);
  const auto* halves =
      reinterpret_cast<const uint16_t*>(payload.halves.data() + w * row.halves + at.halves);
  const float* wholes = payload.wholes.data() + w * row.wholes + at.wholes;
  const int told = payload.counts.data()[w * row.counts + at.counts];
  const int shift = std::min(std::max(told, 0), bound.LargestShift());
  const float byte_unit = std::ldexp(1.0f, bound.LeastHalf() + shift - 134);
  const float half_unit = std::ldexp(1.0f, std::min(bound.LeastWhole() + shift - 15, 254) - 127);
  int64_t next[4] = {};
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) {
    const int tag = payload.Tag(w, t, i);
    const int64_t k = next[tag]++;
    if (tag == 1 && k < room.bytes) {
      out[i] = float(bytes[k] & 0x80 ? -(bytes[k] & 0x7f) : bytes[k] & 0x7f) * byte_unit;
    } else if (tag == 2 && k < room.halves) {
      out[i] = float(halves[k] & 0x8000 ? -(halves[k] & 0x7fff) : halves[k] & 0x7fff) * half_unit;
    } else if (tag == 3 && k < room.wholes) {
      out[i] = SignedFlush(wholes[k]);
    }
  }
  return out;
}

std::vector<Room> Rooms(const std::vector<int64_t>& lengths, double bytes) {
  std::vector<Room> rooms;
  for (const int64_t n : lengths) {
    rooms.push_back({std::max<int64_t>(1, int64_t(bytes * n)), std::max<int64_t>(1, n / 20),
                     std::max<int64_t>(1, n / 100)});
  }
  return rooms;
}

// Every error is below the bound that the payload tells, but of the bytes that did not fit.
void TestEncoder() {
  const ErrorBound bound{10};
  for (const auto& lengths : kLengths) {
    for (const double share : {1.0, 0.2}) {
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
        const bool finite =
            EncodeClasses(executor, sources, 1.0f, bound, rooms, 7, payload.parts());
        EXPECT(finite && payload.Intact(), "share %g", share);
        for (size_t t = 0; t < lengths.size(); ++t) {
          const int32_t* counts = payload.counts.data() + payload.places[t].counts;
          const double error = std::ldexp(1.0, counts[0] - bound.b);
          const std::vector<float> sent = Sent(payload, bound, rooms[t], 0, t, lengths[t]);
          int64_t left = 0;
          bool fits = residual_out[t].Intact() && counts[2] <= rooms[t].halves;
          fits &= counts[3] <= rooms[t].wholes;
          for (int64_t i = 0; i < lengths[t]; ++i) {
            const float acc = SignedFlush(SignedFlush(xs[t][i]) + SignedFlush(residuals[t][i]));
            const bool out = payload.Tag(0, t, i) == 0 && std::fabs(acc) >= error;
            left += out;
            fits &= out || std::fabs(double(acc) - sent[i]) < error;
            fits &= BitsOf(residual_out[t][i]) == BitsOf(SignedFlush(acc - sent[i]));
          }
          EXPECT(fits && left == std::max<int64_t>(0, counts[1] - rooms[t].bytes),
                 "share %g, n = %ld", share, long(lengths[t]));
        }
      });
    }
  }
}

void TestDecoderTakesAnyBits() {
  for (const int b : {1, 10, 100}) {
    const ErrorBound bound{b};
    for (const auto& lengths : kLengths) {
      const std::vector<Room> rooms = Rooms(lengths, 0.25);
      for (const int64_t workers : {1, 3}) {
        Payload payload(lengths, rooms, workers);
        const ClassLengths& row = payload.places.back();
        payload.tags = Garbage<uint32_t>(workers * row.tags, 2);
        payload.bytes = Garbage<uint32_t>(workers * row.bytes, 3);
        payload.halves = Garbage<uint32_t>(workers * row.halves, 4);
        payload.wholes = Garbage<float>(workers * row.wholes, 5);
        payload.counts = Garbage<int32_t>(workers * row.counts, 6);
        payload.counts[0] = 5;
        std::vector<std::vector<float>> wanted;
        for (size_t t = 0; t < lengths.size(); ++t) {
          wanted.emplace_back(lengths[t]);
          for (int64_t w = 0; w < workers; ++w) {
            const auto sent = Sent(payload, bound, rooms[t], w, t, lengths[t]);
            for (int64_t i = 0; i < lengths[t]; ++i) {
              wanted[t][i] = Flush(wanted[t][i] + sent[i]);
            }
          }
          for (float& x : wanted[t]) x = SignedFlush(x * 0.3f);
        }
        OnEveryIsa([&](const Executor& executor) {
          Outputs outputs(lengths);
          const bool finite = DecodeClasses(executor, outputs.targets, bound, rooms,
                                            payload.parts(), workers, 0.3f);
          EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%ld workers", long(workers));
        });
      }
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
      EXPECT(!EncodeClasses(executor, {{x.data(), nullptr, nullptr, 5000}}, 1.0f, {10}, rooms, 0,
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
