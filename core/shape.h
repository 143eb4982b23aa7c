// The extents of a tensor, at most 8 of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "demi/core/error.h"

namespace demi {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;  // a scalar: rank 0, one element
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(const std::vector<int64_t>& dims);

  int rank() const { return rank_; }
  int64_t numel() const;               // product of the extents; 1 for a scalar
  int64_t operator[](int axis) const;  // negative axes count from the end; throws Error out of range
  void set(int axis, int64_t extent);  // likewise
  int axis(int axis) const;            // the axis counted from the front; throws Error out of range
  void append(int64_t extent);
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }
  std::vector<int64_t> to_vector() const { return {begin(), end()}; }
  std::string str() const;  // "[2, 3]"

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// The shape of an elementwise result by NumPy's rule; throws Error naming `op` and both shapes where there is none.
Shape broadcast(const char* op, const Shape& a, const Shape& b);

}  // namespace demi

template <>
struct fmt::formatter<demi::Shape> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(const demi::Shape& s, Context& context) const {
    const std::string text = s.str();
    return std::copy(text.begin(), text.end(), context.out());
  }
};
