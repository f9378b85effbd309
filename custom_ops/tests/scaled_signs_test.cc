#include "kernels/signs/scaled_signs.h"

#include <cmath>

#include "kernels/signs/momentum_signs.h"
#include "testing.h"

namespace grace {

struct Code {
  int sides;
  int64_t block;
  bool by_column;
};

const Code kCodes[] = {{1, 0, false},    {2, 0, false},    {1, 32, false}, {2, 512, false},
                       {1, 2048, false}, {2, 4096, false}, {1, 0, true},   {2, 0, true}};

// Rows and columns.
const int64_t kSizes[][2] = {{1, 1},   {31, 1},  {33, 1},    {1, 7},    {5, 3},     {32, 64},
                             {33, 65}, {257, 1}, {100, 130}, {4099, 1}, {70001, 1}, {9000, 17}};

bool IsUp(float x) { return x >= 0; }

// Sums by halves, zeros filling up to a power of two.
double Halved(std::vector<double> values) {
  size_t n = 1;
  while (n < values.size()) n *= 2;
  values.resize(n);
  for (; n > 1; n /= 2) {
    for (size_t i = 0; i < n / 2; ++i) values[i] += values[i + n / 2];
  }
  return values[0];
}

double Summed(const std::vector<double>& values, size_t chunk) {
  std::vector<double> sums;
  for (size_t i = 0; i < values.size(); i += chunk) {
    const auto end = values.begin() + std::min(values.size(), i + chunk);
    sums.push_back(Halved({values.begin() + i, end}));
  }
  return Halved(sums);
}

float Level(double mean) { return std::fabs(mean) < 0x1p-110 ? 0.0f : static_cast<float>(mean); }

// What bits 0 and 1 stand for in one cell.
std::pair<float, float> Levels(const std::vector<float>& cell, int sides, size_t chunk) {
  std::vector<double> all, low, high;
  double lows = 0;
  for (const float x : cell) {
    const double value = std::fabs(x) < 0x1p-126 ? 0.0 : x;
    all.push_back(std::fabs(value));
    low.push_back(IsUp(x) ? 0.0 : value);
    high.push_back(IsUp(x) ? value : 0.0);
    lows += !IsUp(x);
  }
  const double n = cell.size();
  if (sides == 1) {
    const float level = Level(Summed(all, chunk) * (1.0 / n));
    return {0.0f - level, level};
  }
  return {Level(Summed(low, chunk) / std::max(lows, 1.0)),
          Level(Summed(high, chunk) / std::max(n - lows, 1.0))};
}

// A list in which every tensor is encoded, and what is wanted of it.
struct List {
  explicit List(const Code& code) {
    const DenormalsAreZero scope;
    for (const auto& [rows, columns] : kSizes) {
      const int64_t n = rows * columns;
      xs.emplace_back(Gradient(n));
      residuals.push_back(Gradient(n + 1));
      residuals.back().resize(n);
      std::vector<float> acc(n), sent(n);
      for (int64_t i = 0; i < n; ++i) {
        const float product = xs.back()[i] * 3.0f;
        acc[i] = product + residuals.back()[i];
      }
      const bool by_column = code.by_column && columns > 1;
      cells.push_back({code.block, by_column ? columns : 1});
      const int64_t block = code.block ? code.block : n;
      const int64_t count = by_column ? columns : CeilDiv(n, block);
      std::vector<std::vector<float>> own(count);
      const auto cell_of = [=](int64_t i) { return by_column ? i % columns : i / block; };
      for (int64_t i = 0; i < n; ++i) own[cell_of(i)].push_back(acc[i]);
      std::vector<std::pair<float, float>> levels;
      for (const auto& cell : own) {
        levels.push_back(Levels(cell, code.sides, by_column ? kColumnRows : kChunk));
        low.push_back(levels.back().first);
        high.push_back(levels.back().second);
      }
      const size_t first = words.size();
      words.resize(first + PackedWords(n, 1));
      for (int64_t i = 0; i < n; ++i) {
        words[first + i / 32] |= uint32_t(IsUp(acc[i])) << (i % 32);
        sent[i] = IsUp(acc[i]) ? levels[cell_of(i)].second : levels[cell_of(i)].first;
        acc[i] -= sent[i];
      }
      residual_out.push_back(acc);
      decoded.push_back(sent);
    }
  }

  std::vector<std::vector<float>> xs, residuals, residual_out, decoded;
  std::vector<Cells> cells;
  std::vector<uint32_t> words;
  std::vector<float> low, high;
};

void TestEncode() {
  for (const Code& code : kCodes) {
    const List list(code);
    for (const bool in_place : {false, true}) {
      OnEveryIsa([&](const Executor& executor) {
        std::vector<Guarded<float>> xs, residual_out;
        std::vector<EncodeInput> sources;
        std::vector<ScaledSigns> parts;
        Guarded<uint32_t> words(list.words.size());
        Guarded<float> low(list.low.size()), high(list.high.size());
        int64_t words_at = 0, levels_at = 0;
        for (size_t t = 0; t < list.xs.size(); ++t) {
          const int64_t n = list.xs[t].size();
          xs.emplace_back(list.xs[t]);
          residual_out.emplace_back(n, t % 3);
          float* x = xs[t].data();
          sources.push_back(
              {x, list.residuals[t].data(), in_place ? x : residual_out[t].data(), n});
          parts.push_back({words.data() + words_at,
                           code.sides == 2 ? low.data() + levels_at : nullptr,
                           high.data() + levels_at});
          words_at += PackedWords(n, 1);
          levels_at += list.cells[t].Count(n);
        }
        EXPECT(ScaledSignList(executor, sources, 3.0f, list.cells, parts), "finite");
        EXPECT(words.Equals(list.words) && words.Intact(), "words, block %ld", long(code.block));
        EXPECT(high.Equals(list.high) && high.Intact(), "high, block %ld", long(code.block));
        EXPECT(code.sides == 1 || low.Equals(list.low), "low, block %ld", long(code.block));
        EXPECT(low.Intact(), "low, block %ld", long(code.block));
        for (size_t t = 0; t < residual_out.size(); ++t) {
          const Guarded<float>& rest = in_place ? xs[t] : residual_out[t];
          EXPECT(rest.Equals(list.residual_out[t]) && rest.Intact(), "residual_out %ld", long(t));
        }
      });
    }
  }
}

// Tensors that are too large to be encoded together are encoded as each alone.
void TestLargeLists() {
  const std::vector<int64_t> sizes{900001, 300000, 900000};
  std::vector<std::vector<float>> xs;
  for (const int64_t n : sizes) xs.push_back(Gradient(n));
  OnEveryIsa([&](const Executor& executor) {
    std::vector<Guarded<float>> together, alone;
    std::vector<EncodeInput> sources;
    std::vector<ScaledSigns> parts;
    std::vector<std::vector<uint32_t>> words;
    std::vector<float> low(2 * sizes.size()), high(2 * sizes.size());
    for (size_t t = 0; t < sizes.size(); ++t) {
      together.emplace_back(sizes[t]);
      alone.emplace_back(sizes[t]);
      words.resize(2 * t + 2, std::vector<uint32_t>(PackedWords(900001, 1)));
    }
    const std::vector<Cells> cells(sizes.size(), Cells{0, 1});
    for (size_t t = 0; t < sizes.size(); ++t) {
      const float* x = xs[t].data();
      sources.push_back({x, x, together[t].data(), sizes[t]});
      parts.push_back({words[2 * t].data(), &low[2 * t], &high[2 * t]});
      const EncodeInput source{x, x, alone[t].data(), sizes[t]};
      const ScaledSigns own{words[2 * t + 1].data(), &low[2 * t + 1], &high[2 * t + 1]};
      EXPECT(ScaledSignList(executor, {source}, 1.0f, {cells[t]}, {own}), "finite");
    }
    EXPECT(ScaledSignList(executor, sources, 1.0f, cells, parts), "finite");
    for (size_t t = 0; t < sizes.size(); ++t) {
      EXPECT(low[2 * t] == low[2 * t + 1] && high[2 * t] == high[2 * t + 1], "%ld", long(t));
      EXPECT(words[2 * t] == words[2 * t + 1], "words %ld", long(t));
      const float* other = alone[t].data();
      EXPECT(together[t].Equals({other, other + sizes[t]}), "residual_out %ld", long(t));
    }
    xs[2].back() = INFINITY;
    EXPECT(!ScaledSignList(executor, sources, 1.0f, cells, parts), "the last is not finite");
    xs[2].back() = 0.0f;
  });
}

void TestSum() {
  for (const Code& code : kCodes) {
    const List list(code);
    constexpr int64_t kWorkers = 3;
    std::vector<uint32_t> words;
    std::vector<float> low, high;
    for (int64_t w = 0; w < kWorkers; ++w) {
      words.insert(words.end(), list.words.begin(), list.words.end());
      const float times = 1.0f + float(w);
      for (const float level : list.low) low.push_back(level * times);
      for (const float level : list.high) high.push_back(level * times);
    }
    const ScaledRows rows{words.data(),
                          code.sides == 2 ? low.data() : nullptr,
                          high.data(),
                          kWorkers,
                          int64_t(list.words.size()),
                          int64_t(list.high.size())};
    OnEveryIsa([&](const Executor& executor) {
      std::vector<Guarded<float>> totals;
      std::vector<DecodeOutput> targets;
      for (size_t t = 0; t < list.xs.size(); ++t) {
        totals.emplace_back(list.xs[t].size(), t % 3);
        targets.push_back({totals[t].data(), int64_t(list.xs[t].size())});
      }
      EXPECT(SumScaledSignList(executor, rows, list.cells, targets, 0.3f), "finite");
      for (size_t t = 0; t < totals.size(); ++t) {
        std::vector<float> wanted = list.decoded[t];
        for (float& x : wanted) x = ((x + 2.0f * x) + 3.0f * x) * 0.3f;
        EXPECT(totals[t].Equals(wanted) && totals[t].Intact(), "total %ld, block %ld", long(t),
               long(code.block));
      }
    });
  }
}

void TestMomentum() {
  const DenormalsAreZero scope;
  for (const int64_t n : {1, 31, 33, 2048, 70001}) {
    const std::vector<float> x = Gradient(n), m = Gradient(n + 1);
    std::vector<float> wanted(n);
    std::vector<uint32_t> signs(PackedWords(n, 1));
    for (int64_t i = 0; i < n; ++i) {
      const float product = x[i] * 3.0f, own = product * 0.1f;
      wanted[i] = m[i] * 0.9f + own;
      signs[i / 32] |= uint32_t(IsUp(wanted[i])) << (i % 32);
    }
    OnEveryIsa([&](const Executor& executor) {
      Guarded<float> residual_out(n);
      Guarded<uint32_t> words(signs.size());
      const EncodeInput source{x.data(), m.data(), residual_out.data(), n};
      EXPECT(MomentumSignList(executor, {source}, 3.0f, {0.9f, 0.1f}, {words.data()}), "finite");
      EXPECT(residual_out.Equals(wanted) && residual_out.Intact(), "averages, n = %ld", long(n));
      EXPECT(words.Equals(signs) && words.Intact(), "signs, n = %ld", long(n));
    });
  }
}

void TestFlags() {
  for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
    for (const Cells& cells : {Cells{0, 1}, Cells{64, 1}, Cells{4096, 1}, Cells{0, 3}}) {
      OnEveryIsa([&](const Executor& executor) {
        const int64_t n = 3 * 3001;
        std::vector<float> x(n, 1.0f), residual_out(n), low(n), high(n), total(n);
        std::vector<uint32_t> words(PackedWords(n, 1));
        x[n - 2] = bad;
        for (float* keeps : {static_cast<float*>(nullptr), residual_out.data()}) {
          const EncodeInput source{x.data(), keeps ? x.data() : nullptr, keeps, n};
          const ScaledSigns parts{words.data(), low.data(), high.data()};
          EXPECT(!ScaledSignList(executor, {source}, 1.0f, {cells}, {parts}), "%g", bad);
        }
        const ScaledRows rows{words.data(), low.data(), high.data(), 1, 0, 0};
        EXPECT(!SumScaledSignList(executor, rows, {cells}, {{total.data(), n}}, 1.0f), "%g", bad);
        const EncodeInput source{x.data(), x.data(), residual_out.data(), n};
        EXPECT(!MomentumSignList(executor, {source}, 1.0f, {0.5f, 0.5f}, {words.data()}), "%g",
               bad);
      });
    }
  }
}

// The columns of a tensor without rows have the level 0.
void TestEmptyColumns() {
  OnEveryIsa([](const Executor& executor) {
    Guarded<float> low(3), high(3), other(3);
    const EncodeInput source{nullptr, nullptr, nullptr, 0};
    const std::vector<Cells> cells{{0, 3}};
    ScaledSignList(executor, {source}, 1.0f, cells, {{nullptr, low.data(), high.data()}});
    ScaledSignList(executor, {source}, 1.0f, cells, {{nullptr, nullptr, other.data()}});
    for (const auto* levels : {&low, &high, &other}) {
      EXPECT(levels->Equals(std::vector<float>(3)) && levels->Intact(), "levels");
    }
  });
}

}  // namespace grace

int main() {
  grace::TestEmptyColumns();
  grace::TestEncode();
  grace::TestLargeLists();
  grace::TestSum();
  grace::TestMomentum();
  grace::TestFlags();
  return grace::Finish("scaled signs");
}
