// Layer norm over the last axis (Ba et al., 2016): y = (x - mean) / sqrt(var + eps) * weight + bias, with the biased
// variance, mean and variance in two passes (no E[x^2] - E[x]^2).
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y,
                              Tensor& mean, Tensor& inv_std);
              void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                       const Tensor& inv_std, Tensor& dx, Tensor& dweight, Tensor& dbias);)

struct LayerNormResult {
  Tensor y, mean, inv_std;  // x's shape and dtype; one statistic a row (FP32, FP64 for FP64)
};

// x: [..., C] floating; weight, bias: [C] in FP32 (FP64 for FP64), or both undefined.
inline LayerNormResult layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  DEMI_CHECK(x.rank() > 0 && x.size(-1) > 0, "[layer_norm] needs a last axis of at least one element, not shape {}",
             x.shape());
  const DType statistic = x.dtype() == DType::F64 ? DType::F64 : DType::F32;
  DEMI_CHECK(weight.defined() == bias.defined(), "[layer_norm] weight and bias come together or not at all");
  for (const Tensor* p : {&weight, &bias})
    if (p->defined()) check_same_device("layer_norm", x, *p);
  for (const Tensor* p : {&weight, &bias})
    DEMI_CHECK(!p->defined() || (p->shape() == Shape{x.size(-1)} && p->dtype() == statistic),
               "[layer_norm] weight and bias are {} [{}], not {} {}", statistic, x.size(-1), p->dtype(), p->shape());
  LayerNormResult r;
  r.y = Tensor::empty(x.shape(), x.dtype(), x.device());
  r.mean = Tensor::empty({x.numel() / x.size(-1)}, statistic, x.device());
  r.inv_std = Tensor::empty(r.mean.shape(), statistic, x.device());
  if (x.numel() > 0) DEMI_DISPATCH(x, layer_norm, x, weight, bias, eps, r.y, r.mean, r.inv_std);
  return r;
}

struct LayerNormGradients {
  Tensor dx, dweight, dbias;  // the last two undefined without affine parameters
};
inline LayerNormGradients layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                              const Tensor& mean, const Tensor& inv_std) {
  check_same_device("layer_norm_backward", dy, x);
  DEMI_CHECK(dy.shape() == x.shape() && dy.dtype() == x.dtype(), "[layer_norm_backward] gradient {} {} of {} {}",
             dy.dtype(), dy.shape(), x.dtype(), x.shape());
  LayerNormGradients g;
  g.dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (weight.defined()) {
    g.dweight = Tensor::zeros(weight.shape(), weight.dtype(), x.device());
    g.dbias = Tensor::zeros(weight.shape(), weight.dtype(), x.device());
  }
  if (x.numel() > 0) DEMI_DISPATCH(x, layer_norm_backward, dy, x, weight, mean, inv_std, g.dx, g.dweight, g.dbias);
  return g;
}

}  // namespace demi::kernels
