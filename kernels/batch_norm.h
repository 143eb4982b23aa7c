// Batch norm over all axes but the last (Ioffe and Szegedy, 2015), with an optional residual and ReLU in the same pass:
//   y = relu?( (x - mean) * inv_std * weight + bias + residual? ),   inv_std = 1 / sqrt(var + eps)
// Training takes mean and biased variance of the batch and moves the running ones (PyTorch's convention):
//   running = (1 - momentum) * running + momentum * batch, the running variance with the unbiased batch variance.
// Variances come from squared deviations, never from E[x^2] - E[x]^2, so large means do not cancel.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(
    // Batch statistics of x seen as [rows, C]: mean and inv_std [C]; running statistics are moved and the batch counted
    // unless undefined.
    void batch_norm_statistics(const Tensor& x, double momentum, double eps, Tensor& running_mean, Tensor& running_var,
                               Tensor& num_batches_tracked, Tensor& mean, Tensor& inv_std);
    // y from given mean and inv_std; weight, bias and residual may be undefined.
    void batch_norm_apply(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                          const Tensor& bias, const Tensor& residual, bool relu, Tensor& y);
    // 1 / sqrt(var + eps), for the eval mode.
    void batch_norm_inv_std(const Tensor& var, double eps, Tensor& inv_std);
    // y is read where relu is set. Undefined outputs are not computed: dresidual; dweight and dbias come together.
    void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight,
                             const Tensor& mean, const Tensor& inv_std, bool relu, bool training, Tensor& dx,
                             Tensor& dresidual, Tensor& dweight, Tensor& dbias);)

struct BatchNormOptions {
  double momentum = 0.1, eps = 1e-5;
  bool relu = false;
};
struct BatchNormResult {
  Tensor y, mean, inv_std;  // the statistics used, [C], FP32 (FP64 for FP64): what backward needs
};

// x: [..., C] floating; weight, bias: [C] FP32 (FP64 for FP64) or both undefined; residual: like x or undefined;
// running statistics: [C] FP32 or both undefined; num_batches_tracked: one int64 that training raises by 1, or
// undefined. Training needs more than one value a channel, else Error (the unbiased variance of one value does not
// exist); nothing is changed then.
BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                                 Tensor& running_mean, Tensor& running_var, const BatchNormOptions& options,
                                 Tensor num_batches_tracked = {});
BatchNormResult batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                                const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options);

// With g = 0 where y <= 0 (relu) else dy, so that a NaN stays one, xhat = (x - mean) * inv_std and m rows:
//   dresidual = g, dbias = sum g, dweight = sum g xhat,
//   dx = weight inv_std (g - (dbias + xhat dweight) / m)  in training,  weight inv_std g  in eval.
// dx has x's dtype and dweight, dbias the statistics' ([C]); pass dresidual, dweight, dbias undefined to leave them
// out.
void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight,
                         const BatchNormResult& saved, bool relu, bool training, Tensor& dx, Tensor& dresidual,
                         Tensor& dweight, Tensor& dbias);

}  // namespace demi::kernels
