// softmax(x)_i = exp(x_i - m) / s and log_softmax(x)_i = x_i - m - log s, with m = max_j x_j and s = sum_j exp(x_j -
// m), along one axis. Subtracting the maximum keeps exp from overflowing.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void softmax(const Tensor& x, const AxisView& view, bool log, Tensor& y);
              void softmax_backward(const Tensor& dy, const Tensor& y, const AxisView& view, bool log, Tensor& dx);)

// x: floating, at least one axis -> y of the same shape and dtype; computed in FP32.
inline Tensor softmax(const Tensor& x, int axis, bool log = false) {
  DEMI_CHECK(x.rank() > 0, "[softmax] needs at least one axis");
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, softmax, x, axis_view(x.shape(), axis), log, y);
  return y;
}

// softmax: dx = y (dy - sum_j dy_j y_j). log_softmax: dx = dy - exp(y) sum_j dy_j.
inline Tensor softmax_backward(const Tensor& dy, const Tensor& y, int axis, bool log = false) {
  check_same_device("softmax_backward", dy, y);
  DEMI_CHECK(dy.shape() == y.shape() && dy.dtype() == y.dtype(), "[softmax_backward] gradient {} {} of {} {}",
             dy.dtype(), dy.shape(), y.dtype(), y.shape());
  Tensor dx = Tensor::empty(y.shape(), y.dtype(), y.device());
  if (y.numel() > 0) DEMI_DISPATCH(y, softmax_backward, dy, y, axis_view(y.shape(), axis), log, dx);
  return dx;
}

}  // namespace demi::kernels
