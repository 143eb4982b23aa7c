// Loops over the rows of a broadcast result: where each operand's elements lie.
#pragma once

#include <array>

#include "demi/core/parallel.h"
#include "demi/core/shape.h"
#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

// K operands under one result shape, their strides (0 where an operand repeats), with axes merged where every operand
// allows it. The last axis is the row.
template <int K>
class BroadcastLoop {
 public:
  BroadcastLoop(const Shape& result, const std::array<const Shape*, K>& operands) {
    std::array<std::vector<int64_t>, K> strides;
    for (size_t k = 0; k < K; ++k) strides[k] = strides_in(*operands[k], result);
    for (int i = 0; i < result.rank(); ++i) {
      if (result[i] == 1) continue;
      Axis axis{result[i], {}};
      for (size_t k = 0; k < K; ++k) axis.stride[k] = strides[k][static_cast<size_t>(i)];
      if (!axes_.empty() && mergeable(axes_.back(), axis))
        axes_.back() = {axes_.back().extent * axis.extent, axis.stride};
      else
        axes_.push_back(axis);
    }
    if (axes_.empty()) axes_.push_back({1, {}});
  }

  int64_t row_length() const { return axes_.back().extent; }
  const std::array<int64_t, K>& row_stride() const { return axes_.back().stride; }  // each 0 or 1

  int64_t rows() const {
    int64_t n = 1;
    for (size_t i = 0; i + 1 < axes_.size(); ++i) n *= axes_[i].extent;
    return n;
  }

  // body(offset in the result, offsets in the operands) for rows [begin, end).
  template <typename F>
  void for_rows(int64_t begin, int64_t end, F body) const {
    for (int64_t row = begin; row < end; ++row) {
      std::array<int64_t, K> offset{};
      int64_t rest = row;
      for (size_t i = axes_.size() - 1; i-- > 0;) {
        const int64_t at = rest % axes_[i].extent;
        rest /= axes_[i].extent;
        for (size_t k = 0; k < K; ++k) offset[k] += at * axes_[i].stride[k];
      }
      body(row * row_length(), offset);
    }
  }

 private:
  struct Axis {
    int64_t extent;
    std::array<int64_t, K> stride;
  };

  static std::vector<int64_t> strides_in(const Shape& operand, const Shape& result) {
    std::vector<int64_t> strides(static_cast<size_t>(result.rank()), 0);
    int64_t stride = 1;
    for (int i = 1; i <= operand.rank(); ++i) {
      if (operand[-i] != 1) strides[static_cast<size_t>(result.rank() - i)] = stride;
      stride *= operand[-i];
    }
    return strides;
  }
  static bool mergeable(const Axis& outer, const Axis& inner) {
    for (size_t k = 0; k < K; ++k)
      if (outer.stride[k] != inner.stride[k] * inner.extent) return false;
    return true;
  }

  std::vector<Axis> axes_;
};

// A stretch of a row: elements from x on, or its first element repeated.
template <typename T>
class RowReader {
 public:
  using A = Accumulator<T>;
  const A* operator()(const T* x, int64_t stride, int64_t n) {
    if (stride != 0) return reader_(x, n);
    std::fill_n(repeated_, n, static_cast<A>(*x));
    return repeated_;
  }

 private:
  Reader<T> reader_;
  alignas(64) A repeated_[kBlock];
};

}  // namespace demi::kernels::cpu
