#include "demi/optim/clip.h"

#include "demi/kernels/gradient.h"
#include "demi/kernels/scale.h"

namespace demi::optim {

Tensor clip_grad_norm(Optimizer& optimizer, double max_norm) {
  std::vector<Tensor> gradients = optimizer.promoted_gradient_runs();
  if (gradients.empty()) return Tensor::zeros({}, DType::F32, optimizer.device());
  const kernels::ClipResult clip = kernels::clip_coefficient(gradients, max_norm);
  for (Tensor& g : gradients) kernels::scale_by_into(g, clip.coefficient, g);
  return clip.norm;
}

void clip_grad_value(Optimizer& optimizer, double limit) {
  for (Tensor& g : optimizer.promoted_gradient_runs()) kernels::clip_value(g, limit);
}

Tensor grad_norm(Optimizer& optimizer) {
  const std::vector<Tensor> gradients = optimizer.gradient_runs();
  return gradients.empty() ? Tensor::zeros({}, DType::F32, optimizer.device()) : kernels::l2_norm(gradients);
}

}  // namespace demi::optim
