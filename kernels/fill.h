// fill: every element becomes one value.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void fill(Tensor& x, double value);)

// x: any shape and dtype; the value is rounded to it.
inline void fill(Tensor& x, double value) {
  if (x.numel() > 0) DEMI_DISPATCH(x, fill, x, value);
}

inline Tensor full(const Shape& shape, double value, DType dtype, Device device = {}) {
  Tensor x = Tensor::empty(shape, dtype, device);
  fill(x, value);
  return x;
}

}  // namespace demi::kernels
