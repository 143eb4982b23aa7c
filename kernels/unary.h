// The elementwise functions of one tensor. Each is one functor in unary_functors.h, used by both backends.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

// Pow is x^a for a constant a; Clamp limits to [a, b]; LeakyRelu is a x below 0, for a >= 0; Gelu is the exact one,
// x Phi(x). NaN stays NaN in all of them.
enum class UnaryOp : uint8_t {
  Neg,
  Abs,
  Square,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Exp,
  Log,
  Pow,
  Clamp,
  Relu,
  LeakyRelu,
  Tanh,
  Sigmoid,
  Silu,
  Gelu,
  Softplus
};

DEMI_BACKENDS(void unary(UnaryOp op, const Tensor& x, double a, double b, Tensor& y);
              void unary_backward(UnaryOp op, const Tensor& dy, const Tensor& x, const Tensor& y, double a, double b,
                                  Tensor& dx);)

// Whether the backward of `op` reads the input or the output; what it does not read need not be kept.
bool backward_needs_input(UnaryOp op);
bool backward_needs_output(UnaryOp op);

// x: floating, any shape -> y of the same dtype; 16-bit values are computed in FP32 and rounded once.
inline Tensor unary(UnaryOp op, const Tensor& x, double a = 0, double b = 0) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, unary, op, x, a, b, y);
  return y;
}

// dx = dy f'(x). Pass x or y where backward_needs_*() says so; the other may be undefined. The gradient of Relu at 0 is
// 0, of LeakyRelu a dy, of Abs 0, of Clamp outside its range 0 (1 on its ends).
inline Tensor unary_backward(UnaryOp op, const Tensor& dy, const Tensor& x, const Tensor& y, double a = 0,
                             double b = 0) {
  const Tensor& saved = backward_needs_input(op) ? x : backward_needs_output(op) ? y : dy;
  check_same_device("unary_backward", dy, saved);
  DEMI_CHECK(dy.shape() == saved.shape() && dy.dtype() == saved.dtype(),
             "[unary_backward] gradient {} {} of a value {} {}", dy.dtype(), dy.shape(), saved.dtype(), saved.shape());
  Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  if (dy.numel() > 0) DEMI_DISPATCH(dy, unary_backward, op, dy, x, y, a, b, dx);
  return dx;
}

}  // namespace demi::kernels
