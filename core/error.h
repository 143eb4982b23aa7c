// The one exception type of demi and the check that throws it.
#pragma once

#if defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1  // fmt 9 assumes that nvcc has no constexpr
#endif
#include <fmt/core.h>

#include <stdexcept>
#include <utility>

namespace demi {

// Thrown for every failure that a caller can meet. The text is one line that says what is wrong and what would be
// right; errors of an op start with its name in brackets: "[conv2d] input has 3 channels, the filter 4".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace demi

// DEMI_CHECK(condition, format, args...): throws Error with the formatted text unless the condition holds.
#define DEMI_CHECK(condition, ...)               \
  do {                                           \
    if (!(condition)) ::demi::fail(__VA_ARGS__); \
  } while (0)
