// Gradient clipping. With a loss scaler: scaler.unscale(optimizer) first, then clip, then scaler.step(optimizer).
#pragma once

#include "demi/optim/optimizer.h"

namespace demi::optim {

// Multiplies all gradients of the optimizer with min(1, max_norm / (norm + 1e-6)), norm being the L2 norm of all of
// them together. Gives the norm back as one FP32 element on the device: reading it synchronizes, ignoring it does not.
// A norm that is not finite is given back as it is, and nothing is multiplied.
Tensor clip_grad_norm(Optimizer& optimizer, double max_norm);

// Limits every gradient value to [-limit, limit]; NaN stays.
void clip_grad_value(Optimizer& optimizer, double limit);

// The L2 norm of all gradients together, one FP32 element on the device; of scaled gradients when they are still
// scaled.
Tensor grad_norm(Optimizer& optimizer);

}  // namespace demi::optim
