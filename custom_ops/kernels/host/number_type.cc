#include "kernels/host/number_type.h"

#include <cstring>
#include <type_traits>

#include "kernels/quantize/cast.h"

#define GRACE_KERNEL "kernels/host/add-inl.h"
#include "kernels/base/each_isa.h"
#define GRACE_KERNEL "kernels/quantize/cast-inl.h"
#include "kernels/base/each_isa.h"

namespace grace {
namespace {

void AddAllFloats(const void* const* parts, int count, int64_t n, void* sum) {
  const auto add = GRACE_CHOOSE(AddFloats);
  auto* total = static_cast<float*>(sum);
  add(static_cast<const float*>(parts[0]), static_cast<const float*>(parts[1]), n, total);
  for (int i = 2; i < count; ++i) add(total, static_cast<const float*>(parts[i]), n, total);
}

template <Half kType>
void ToShared(const void* own, int64_t count, void* shared) {
  GRACE_CHOOSE(ToHalves<kType, false>)
  (static_cast<const float*>(own), count, nullptr, static_cast<uint16_t*>(shared));
}

template <Half kType>
void FromShared(const void* shared, int64_t count, void* own) {
  GRACE_CHOOSE(FromHalves<kType>)
  (static_cast<const uint16_t*>(shared), count, 1.0f, static_cast<float*>(own));
}

template <Half kType>
void AddHalves(const void* const* parts, int count, int64_t n, void* sum) {
  alignas(64) float total[kHostBlock], next[kHostBlock];
  const auto add = GRACE_CHOOSE(AddFloats);
  FromShared<kType>(parts[0], n, total);
  for (int i = 1; i < count; ++i) {
    FromShared<kType>(parts[i], n, next);
    add(total, next, n, total);
  }
  ToShared<kType>(total, n, sum);
}

// Unsigned where T is an integer, so that it wraps around.
template <class T>
void AddNumbers(const void* const* parts, int count, int64_t n, void* sum) {
  auto* total = static_cast<T*>(sum);
  std::memcpy(sum, parts[0], n * sizeof(T));
  for (int i = 1; i < count; ++i) {
    const auto* part = static_cast<const T*>(parts[i]);
    for (int64_t j = 0; j < n; ++j) total[j] += part[j];
  }
}

const Adder kAdders[] = {
    {4, 4, nullptr, nullptr, AddAllFloats},
    {4, 2, ToShared<Half::kBfloat16>, FromShared<Half::kBfloat16>, AddHalves<Half::kBfloat16>},
    {2, 2, nullptr, nullptr, AddHalves<Half::kFloat16>},
    {2, 2, nullptr, nullptr, AddHalves<Half::kBfloat16>},
    {8, 8, nullptr, nullptr, AddNumbers<double>},
    {4, 4, nullptr, nullptr, AddNumbers<uint32_t>},
    {8, 8, nullptr, nullptr, AddNumbers<uint64_t>},
};

}  // namespace

const Adder& AdderOf(NumberType type) { return kAdders[static_cast<int>(type)]; }

}  // namespace grace
