#include "demi/core/shape.h"

#include <algorithm>

namespace demi {

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (int64_t extent : dims) append(extent);
}

Shape::Shape(const std::vector<int64_t>& dims) {
  for (int64_t extent : dims) append(extent);
}

void Shape::append(int64_t extent) {
  DEMI_CHECK(rank_ < kMaxRank, "a shape has at most {} axes", kMaxRank);
  DEMI_CHECK(extent >= 0, "an extent is never negative, not {}", extent);
  dims_[static_cast<size_t>(rank_++)] = extent;
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (int64_t extent : *this) n *= extent;
  return n;
}

int Shape::axis(int axis) const {
  DEMI_CHECK(axis >= -rank_ && axis < rank_, "axis {} is out of range for shape {}", axis, str());
  return axis < 0 ? axis + rank_ : axis;
}

int64_t Shape::operator[](int a) const { return dims_[static_cast<size_t>(axis(a))]; }

void Shape::set(int a, int64_t extent) { dims_[static_cast<size_t>(axis(a))] = extent; }

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string(dims_[static_cast<size_t>(i)]);
  return s + "]";
}

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

Shape broadcast(const char* op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<int64_t> dims(static_cast<size_t>(rank));
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[-i] : 1, y = i <= b.rank() ? b[-i] : 1;
    DEMI_CHECK(x == y || x == 1 || y == 1, "[{}] shapes {} and {} do not broadcast", op, a, b);
    dims[static_cast<size_t>(rank - i)] = x == 1 ? y : x;
  }
  return Shape(dims);
}

}  // namespace demi
