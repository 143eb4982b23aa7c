// scale: y = alpha x, with alpha on the host or in device memory; axpy: y += alpha x.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void scale(const Tensor& x, double alpha, Tensor& y);
              void scale_by(const Tensor& x, const Tensor& factor, Tensor& y);
              void axpy(double alpha, const Tensor& x, Tensor& y);)

// x: floating -> y of the same dtype; the product is formed in FP32 (FP64 for FP64) and rounded once.
inline Tensor scale(const Tensor& x, double alpha) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, scale, x, alpha, y);
  return y;
}

// The same with a factor that lives on the device: one FP32 element, read by the kernel, so nothing synchronizes.
// y may be x itself.
inline void scale_by_into(const Tensor& x, const Tensor& factor, Tensor& y) {
  check_same_device("scale_by", x, factor);
  DEMI_CHECK(factor.numel() == 1 && factor.dtype() == DType::F32,
             "[scale_by] the factor is one fp32 element, not {} of {}", factor.numel(), factor.dtype());
  DEMI_CHECK(x.shape() == y.shape() && x.dtype() == y.dtype(), "[scale_by] from {} {} into {} {}", x.dtype(), x.shape(),
             y.dtype(), y.shape());
  if (x.numel() > 0) DEMI_DISPATCH(x, scale_by, x, factor, y);
}
inline Tensor scale_by(const Tensor& x, const Tensor& factor) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  scale_by_into(x, factor, y);
  return y;
}

// y += alpha x. Same shape; x and y may differ in floating dtype (an FP16 gradient added to an FP32 sum): computed in
// FP32, rounded once to y's dtype.
inline void axpy(double alpha, const Tensor& x, Tensor& y) {
  check_same_device("axpy", x, y);
  DEMI_CHECK(x.shape() == y.shape(), "[axpy] shapes {} and {} differ", x.shape(), y.shape());
  if (x.numel() > 0) DEMI_DISPATCH(x, axpy, alpha, x, y);
}

}  // namespace demi::kernels
