// One Adam step (Kingma and Ba, 2015) or, with decoupled decay, AdamW (Loshchilov and Hutter, 2019), in one pass over a
// run of flat storage. t counts real steps, this one included:
//   g = grad / scale (+ weight_decay * w when coupled);  decoupled: w -= lr * weight_decay * w
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// then w rounded to the 16-bit copies. Powers are formed in FP64, the rest in FP32.
#pragma once

#include "demi/kernels/optimizer_step.h"

namespace demi::kernels {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;
};

// m, v: FP32 [n].
DEMI_BACKENDS(void adam_step(const StepOperands& run, Tensor& m, Tensor& v, const AdamOptions& options);)

inline void adam_step(const StepOperands& run, Tensor& m, Tensor& v, const AdamOptions& options) {
  if (run.master.numel() > 0) DEMI_DISPATCH(run.master, adam_step, run, m, v, options);
}

}  // namespace demi::kernels
