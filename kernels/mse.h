// Mean squared error: loss_i = (x_i - target_i)^2, averaged, summed or left as it is; dx = 2 g (x - target).
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void mse(const Tensor& x, const Tensor& target, Reduction reduction, Tensor& loss);
              void mse_backward(const Tensor& dy, const Tensor& x, const Tensor& target, Reduction reduction,
                                Tensor& dx);)

// x, target: one shape and floating dtype -> FP32 (FP64 for FP64) loss, [] for mean and sum, x's shape for none.
inline Tensor mse(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_same_device("mse_loss", x, target);
  DEMI_CHECK(x.shape() == target.shape() && x.dtype() == target.dtype(), "[mse_loss] {} {} against a target {} {}",
             x.dtype(), x.shape(), target.dtype(), target.shape());
  DEMI_CHECK(x.numel() > 0 || reduction != Reduction::Mean, "[mse_loss] the mean over an empty batch does not exist");
  Tensor loss = Tensor::empty(reduction == Reduction::None ? x.shape() : Shape{},
                              x.dtype() == DType::F64 ? DType::F64 : DType::F32, x.device());
  if (x.numel() > 0)
    DEMI_DISPATCH(x, mse, x, target, reduction, loss);
  else
    loss.zero();
  return loss;
}

// dy: the loss's shape -> the gradient of x, in x's shape and dtype.
inline Tensor mse_backward(const Tensor& dy, const Tensor& x, const Tensor& target, Reduction reduction) {
  check_same_device("mse_loss_backward", dy, x);
  Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, mse_backward, dy, x, target, reduction, dx);
  return dx;
}

}  // namespace demi::kernels
