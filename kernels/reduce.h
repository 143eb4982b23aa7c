// Sum, mean, max and argmax over any axes; sums back to a smaller shape (the backward of broadcasting); broadcast
// copies.
#pragma once

#include <vector>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

enum class ReduceOp : uint8_t { Sum, Mean, Max };
constexpr const char* name_of(ReduceOp op) {
  constexpr const char* names[] = {"sum", "mean", "amax"};
  return names[static_cast<int>(op)];
}

// On x seen as [outer, extent, inner]: y [outer, inner]. Sums are accumulated in FP32 (FP64 for FP64), in an order that
// does not change from run to run, and divided by `divisor`; x and y may differ in dtype. Max gives NaN when one is
// NaN.
DEMI_BACKENDS(void reduce(ReduceOp op, const Tensor& x, const AxisView& view, double divisor, Tensor& y);
              void argmax(const Tensor& x, const AxisView& view, Tensor& y);
              void amax_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const AxisView& view, Tensor& dx);
              void broadcast_copy(const Tensor& x, Tensor& y);)

// x: floating, at least one element along the axes for mean and max -> y in x's dtype (or `dtype`), without the axes
// or, with keepdim, with extent 1 there. No axes mean all of them. Intermediate sums over several axes are FP32.
Tensor reduce(ReduceOp op, const Tensor& x, const std::vector<int>& axes, bool keepdim = false);
Tensor reduce(ReduceOp op, const Tensor& x, const std::vector<int>& axes, bool keepdim, DType dtype);

// The sum of x over the axes that broadcasting `shape` to x's shape repeated: x.shape -> shape, in `dtype`.
Tensor sum_to(const Tensor& x, const Shape& shape, DType dtype);
inline Tensor sum_to(const Tensor& x, const Shape& shape) { return sum_to(x, shape, x.dtype()); }

// The sum over all axes but the last, as for the gradient of a bias: [..., C] -> [C], FP32 for 16-bit dy.
Tensor bias_grad(const Tensor& dy);

// The index (int64) of the first largest element along one axis, or in the flattened tensor; a NaN counts as largest.
Tensor argmax(const Tensor& x, int axis, bool keepdim = false);
Tensor argmax(const Tensor& x);

// The gradient of amax: dy shared evenly among the elements that equal the maximum. `y` and `dy` in keepdim shape.
Tensor amax_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const std::vector<int>& axes);

// x repeated to a larger shape that it broadcasts to.
Tensor broadcast_to(const Tensor& x, const Shape& shape);

}  // namespace demi::kernels
