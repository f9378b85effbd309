// How the arguments of a kernel are those of its launcher, a function of the CUDA library: structs
// with vectors become pointers, which C has, and the first list brings its length along.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

namespace grace {

// A struct, for a launcher that takes it as it is or a pointer to it.
template <class T>
class ByValueOrPointer {
 public:
  explicit ByValueOrPointer(const T& value) : value_(value) {}
  operator const T&() const { return value_; }
  operator const T*() const { return &value_; }

 private:
  const T& value_;
};

// What a launcher gets for one argument. Overloads say it for structs that a launcher does not
// take; selections.h has them.
template <class T>
auto Flat(const T& value) {
  using Given = std::conditional_t<std::is_class_v<T>, ByValueOrPointer<T>, T>;
  return std::tuple<Given>(Given(value));
}

// Of an empty list null.
template <class T>
std::tuple<const T*> Flat(const std::vector<T>& list) {
  return {list.empty() ? nullptr : list.data()};
}

// Whether an argument is a list, and the number of its tensors.
template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};

template <class T>
int64_t CountOf(const T& list) {
  return static_cast<int64_t>(list.size());
}

// What a launcher gets for these arguments: the number of tensors comes after the first list.
template <bool counted>
std::tuple<> ForLauncher() {
  return {};
}

template <bool counted, class First, class... Rest>
auto ForLauncher(const First& first, const Rest&... rest) {
  if constexpr (IsList<First>::value && !counted) {
    return std::tuple_cat(Flat(first), std::tuple(CountOf(first)), ForLauncher<true>(rest...));
  } else {
    return std::tuple_cat(Flat(first), ForLauncher<counted>(rest...));
  }
}

}  // namespace grace
