// Elementwise arithmetic of two tensors with NumPy broadcasting: add, sub, mul, div, maximum.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

enum class BinaryOp : uint8_t { Add, Sub, Mul, Div, Maximum };
constexpr const char* name_of(BinaryOp op) {
  constexpr const char* names[] = {"add", "sub", "mul", "div", "maximum"};
  return names[static_cast<int>(op)];
}

DEMI_BACKENDS(void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y);
              void maximum_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Tensor& da);)

// a, b: one floating dtype, shapes that broadcast -> y of the broadcast shape. 16-bit operands are combined in FP32 and
// rounded once. maximum gives NaN where either is NaN.
inline Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  check_same_device(name_of(op), a, b);
  DEMI_CHECK(a.dtype() == b.dtype(), "[{}] dtypes {} and {} differ: cast one", name_of(op), a.dtype(), b.dtype());
  Tensor y = Tensor::empty(broadcast(name_of(op), a.shape(), b.shape()), a.dtype(), a.device());
  if (y.numel() > 0) DEMI_DISPATCH(a, binary, op, a, b, y);
  return y;
}
inline Tensor add(const Tensor& a, const Tensor& b) { return binary(BinaryOp::Add, a, b); }
inline Tensor sub(const Tensor& a, const Tensor& b) { return binary(BinaryOp::Sub, a, b); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return binary(BinaryOp::Mul, a, b); }
inline Tensor div(const Tensor& a, const Tensor& b) { return binary(BinaryOp::Div, a, b); }
inline Tensor maximum(const Tensor& a, const Tensor& b) { return binary(BinaryOp::Maximum, a, b); }

// The gradient of maximum(a, b) for a, before it is summed to a's shape: 0 where a < b, dy/2 where they are equal, else
// dy: it passes where one of them is NaN. dy: the broadcast shape -> the same shape.
inline Tensor maximum_backward(const Tensor& dy, const Tensor& a, const Tensor& b) {
  check_same_device("maximum_backward", dy, a);
  check_same_device("maximum_backward", a, b);
  DEMI_CHECK(dy.shape() == broadcast("maximum_backward", a.shape(), b.shape()),
             "[maximum_backward] gradient of shape {}", dy.shape());
  Tensor da = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  if (dy.numel() > 0) DEMI_DISPATCH(dy, maximum_backward, dy, a, b, da);
  return da;
}

}  // namespace demi::kernels
