#include "demi/nn/functional/layer_norm.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/layer_norm.h"

namespace demi {

Variable layer_norm(const Variable& x_in, const Variable& weight, const Variable& bias, double eps) {
  const auto in = amp::prepare("layer_norm", {x_in});
  const Tensor& x = in[0].tensor();
  const Tensor gamma = weight.defined() ? weight.tensor() : Tensor{}, beta = bias.defined() ? bias.tensor() : Tensor{};
  const kernels::LayerNormResult r = kernels::layer_norm(x, gamma, beta, eps);
  return record("layer_norm", r.y, {in[0], weight, bias},
                [x, gamma, mean = r.mean, inv_std = r.inv_std](const Tensor& dy) {
                  const kernels::LayerNormGradients g = kernels::layer_norm_backward(dy, x, gamma, mean, inv_std);
                  return std::vector<Tensor>{g.dx, g.dweight, g.dbias};
                });
}

}  // namespace demi
