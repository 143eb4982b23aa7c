// A linear map and a layer norm as a program computes them that knows FP16 and nothing else.
#pragma once

#include "demi/autograd/function.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/permute.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/reduce.h"

namespace demi::lessons {

// a [m, k] times b [k, n] in FP16: every product and every partial sum is rounded.
inline Tensor matmul_fp16_sums(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const Tensor products = kernels::mul(kernels::permute(a, {1, 0}).reshape({k, m, 1}), b.reshape({k, 1, n}));
  Tensor sum = Tensor::zeros({m, n}, DType::F16, a.device());
  for (int64_t i = 0; i < k; ++i) sum = kernels::add(sum, products.narrow(i, 1).reshape({m, n}));
  return sum;
}

// x [m, k], w [n, k], both FP16 -> x w^T [m, n].
struct NaiveLinear : Function<NaiveLinear> {
  static Tensor forward(FunctionContext& context, const Tensor& x, const Tensor& w) {
    context.save({x, w});
    return matmul_fp16_sums(x, kernels::permute(w, {1, 0}));
  }
  static std::vector<Tensor> backward(FunctionContext& context, const Tensor& dy) {
    const Tensor &x = context.saved(0), &w = context.saved(1);
    return {context.needs_grad(0) ? matmul_fp16_sums(dy, w) : Tensor(),
            context.needs_grad(1) ? matmul_fp16_sums(kernels::permute(dy, {1, 0}), x) : Tensor()};
  }
};

// x [m, n] in FP16, each row less its mean over its standard deviation; each result is rounded. fp16_sums: the partial
// sums of mean and variance too.
inline Variable naive_layer_norm(const Variable& x, bool fp16_sums) {
  const auto row_mean = [&](const Variable& v) {
    if (!fp16_sums) return mean(v, {1}, true);
    return NaiveLinear::apply(v, Variable(kernels::full({1, v.size(1)}, 1, DType::F16, v.device()))) *
           (1.0 / v.size(1));
  };
  const Variable centered = x - row_mean(x);
  return centered * rsqrt(row_mean(square(centered)) + kernels::full({}, 1e-5, DType::F16, x.device()));
}

}  // namespace demi::lessons
