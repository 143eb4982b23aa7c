// One SGD step (Sutskever et al., 2013, in PyTorch's form) on a run of flat storage, in one pass:
//   g = grad / scale + weight_decay * w;  v = momentum * v + (1 - dampening) * g  (v = g in the first real step)
//   w -= lr * (nesterov ? g + momentum * v : v)          (no momentum: w -= lr * g)
// then w rounded to the 16-bit copies. All arithmetic is FP32; nothing is ever unscaled in 16 bits.
#pragma once

#include "demi/kernels/optimizer_step.h"

namespace demi::kernels {

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};

// momentum: FP32 [n], undefined when options.momentum is 0.
DEMI_BACKENDS(void sgd_step(const StepOperands& run, Tensor& momentum, const SgdOptions& options);)

inline void sgd_step(const StepOperands& run, Tensor& momentum, const SgdOptions& options) {
  if (run.master.numel() > 0) DEMI_DISPATCH(run.master, sgd_step, run, momentum, options);
}

}  // namespace demi::kernels
