// cast: the same values in another dtype, rounded to nearest even; out-of-range reals become infinity in a floating
// dtype. Reals to integers truncate towards zero (out of range is unspecified).
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void cast(const Tensor& x, Tensor& y);)

// y = x in y's dtype. Same shape and device; every pair of dtypes (FP64 on the CPU only).
inline void cast_into(const Tensor& x, Tensor& y) {
  check_same_device("cast", x, y);
  DEMI_CHECK(x.shape() == y.shape(), "[cast] from shape {} into {}", x.shape(), y.shape());
  if (x.dtype() == y.dtype()) return y.copy_from(x);
  if (x.numel() > 0) DEMI_DISPATCH(x, cast, x, y);
}

// The same tensor back when it has the dtype already.
inline Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  cast_into(x, y);
  return y;
}

}  // namespace demi::kernels
