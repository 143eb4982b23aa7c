// permute: y[i_0, ..., i_r] = x with its axes in another order, copied into contiguous memory.
#pragma once

#include <vector>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void permute(const Tensor& x, const std::vector<int>& axes, Tensor& y);)

// x: any dtype; axis i of y is axis axes[i] of x.
inline Tensor permute(const Tensor& x, const std::vector<int>& axes) {
  DEMI_CHECK(static_cast<int>(axes.size()) == x.rank(), "[permute] {} axes for shape {}", axes.size(), x.shape());
  Shape shape;
  unsigned seen = 0;
  for (int a : axes) {
    shape.append(x.size(a));
    seen |= 1u << x.shape().axis(a);
  }
  DEMI_CHECK(seen == (1u << x.rank()) - 1, "[permute] every axis of {} once", x.shape());
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, permute, x, axes, y);
  return y;
}

// Between PyTorch's layouts and demi's: images [N, C, H, W] <-> [N, H, W, C], filters [K, C, R, S] <-> [K, R, S, C].
inline Tensor to_channels_last(const Tensor& x) { return permute(x, {0, 2, 3, 1}); }
inline Tensor to_channels_first(const Tensor& x) { return permute(x, {0, 3, 1, 2}); }

}  // namespace demi::kernels
