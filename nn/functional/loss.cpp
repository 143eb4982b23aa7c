#include "demi/nn/functional/loss.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/mse.h"
#include "demi/kernels/scale.h"

namespace demi {

Variable cross_entropy(const Variable& logits_in, const Tensor& labels, const CrossEntropyOptions& options) {
  const auto in = amp::prepare("cross_entropy", {logits_in});
  const Tensor& logits = in[0].tensor();
  const kernels::CrossEntropyResult r =
      kernels::cross_entropy(logits, labels, options.label_smoothing, options.reduction);
  return record("cross_entropy", r.loss, in, [=, log_sum = r.log_sum](const Tensor& dy) {
    return std::vector<Tensor>{
        kernels::cross_entropy_backward(dy, logits, labels, log_sum, options.label_smoothing, options.reduction)};
  });
}

Variable mse_loss(const Variable& x_in, const Variable& target_in, Reduction reduction) {
  const auto in = amp::prepare("mse_loss", {x_in, target_in});
  const Tensor &x = in[0].tensor(), &target = in[1].tensor();
  const bool wants_x = in[0].requires_grad(), wants_target = in[1].requires_grad();
  return record("mse_loss", kernels::mse(x, target, reduction), in, [=](const Tensor& dy) {
    const Tensor dx = kernels::mse_backward(dy, x, target, reduction);
    return std::vector<Tensor>{wants_x ? dx : Tensor{}, wants_target ? kernels::scale(dx, -1.0) : Tensor{}};
  });
}

}  // namespace demi
