// Matrix product C = op(A) op(B), each operand as it is or transposed, and linear: y = x W^T + bias.
// Products of 16-bit operands are exact in FP32 and accumulated there; the result is rounded once. FP32 is IEEE FP32
// unless float32_math() says Tf32.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

// c [m, n] = op(a) op(b) + bias [n]; bias (undefined for none) is FP32, or FP64 for FP64. m, n or k may be 0 (k = 0:
// the bias alone).
DEMI_BACKENDS(void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                        Tensor& c);)

inline void gemm_into(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                      Tensor& c) {
  check_same_device("matmul", a, b);
  check_same_device("matmul", a, c);
  if (bias.defined()) check_same_device("linear", a, bias);
  DEMI_CHECK(a.rank() == 2 && b.rank() == 2, "[matmul] takes matrices, not shapes {} and {}", a.shape(), b.shape());
  DEMI_CHECK(a.dtype() == b.dtype(), "[matmul] dtypes {} and {} differ: cast one", a.dtype(), b.dtype());
  const int64_t k = a.size(transpose_a ? 0 : 1);
  DEMI_CHECK(k == b.size(transpose_b ? 1 : 0), "[matmul] inner extents of {}{} and {}{} differ", a.shape(),
             transpose_a ? "^T" : "", b.shape(), transpose_b ? "^T" : "");
  const Shape out{a.size(transpose_a ? 1 : 0), b.size(transpose_b ? 0 : 1)};
  DEMI_CHECK(c.shape() == out && (c.dtype() == a.dtype() || (c.dtype() == DType::F32 && is_16bit(a.dtype()))),
             "[matmul] into {} {}, the product is {} {}", c.dtype(), c.shape(), a.dtype(), out);
  DEMI_CHECK(!bias.defined() ||
                 (bias.shape() == Shape{out[1]} && bias.dtype() == (a.dtype() == DType::F64 ? DType::F64 : DType::F32)),
             "[linear] bias is fp32 [{}], not {} {}", out[1], bias.dtype(), bias.shape());
  if (out.numel() > 0) DEMI_DISPATCH(a, gemm, a, transpose_a, b, transpose_b, bias, c);
}

// a: [m, k] (or [k, m] transposed), b: [k, n] (or [n, k] transposed) -> [m, n] in their dtype.
inline Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false) {
  DEMI_CHECK(a.rank() == 2 && b.rank() == 2, "[matmul] takes matrices, not shapes {} and {}", a.shape(), b.shape());
  Tensor c = Tensor::empty({a.size(transpose_a ? 1 : 0), b.size(transpose_b ? 0 : 1)}, a.dtype(), a.device());
  gemm_into(a, transpose_a, b, transpose_b, {}, c);
  return c;
}

// x: [..., in], weight: [out, in], bias: [out] FP32 or undefined -> [..., out].
inline Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_same_device("linear", x, weight);
  DEMI_CHECK(x.rank() >= 1 && weight.rank() == 2 && x.size(-1) == weight.size(1),
             "[linear] x of shape {} does not fit a weight of shape {}", x.shape(), weight.shape());
  Shape out = x.shape();
  out.set(-1, weight.size(0));
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.size(i);
  Tensor y = Tensor::empty({rows, weight.size(0)}, x.dtype(), x.device());
  gemm_into(x.reshape(Shape{rows, x.size(-1)}), false, weight, true, bias, y);
  return y.reshape(out);
}

}  // namespace demi::kernels
