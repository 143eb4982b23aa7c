// Dropout (Srivastava et al., 2014): each element is kept with probability 1 - p and then divided by it, else 0.
// Selected, not multiplied, so that a dropped infinity is 0.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void dropout(const Tensor& x, double p, uint64_t seed, const Tensor& step, uint64_t call, Tensor& y,
                           Tensor& mask);
              void dropout_backward(const Tensor& dy, const Tensor& mask, double p, Tensor& dx);)

struct DropoutResult {
  Tensor y, mask;  // mask: uint8, 1 = kept
};

// x: floating, 0 <= p <= 1. step: int64, one element on x's device (RandomState). Element i is kept when uniform word
// i % 4 of Philox(seed, mix(step[0], call), i / 4) is at least p.
inline DropoutResult dropout(const Tensor& x, double p, uint64_t seed, const Tensor& step, uint64_t call) {
  DEMI_CHECK(p >= 0 && p <= 1, "[dropout] p is between 0 and 1, not {}", p);
  check_same_device("dropout", x, step);
  DropoutResult r{Tensor::empty(x.shape(), x.dtype(), x.device()), Tensor::empty(x.shape(), DType::U8, x.device())};
  if (x.numel() > 0) DEMI_DISPATCH(x, dropout, x, p, seed, step, call, r.y, r.mask);
  return r;
}

// dx = dy / (1 - p) where kept, else 0.
inline Tensor dropout_backward(const Tensor& dy, const Tensor& mask, double p) {
  check_same_device("dropout_backward", dy, mask);
  DEMI_CHECK(dy.shape() == mask.shape(), "[dropout_backward] gradient {} with a mask {}", dy.shape(), mask.shape());
  Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  if (dy.numel() > 0) DEMI_DISPATCH(dy, dropout_backward, dy, mask, p, dx);
  return dx;
}

}  // namespace demi::kernels
