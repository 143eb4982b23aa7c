#include "demi/nn/functional/conv2d.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/reduce.h"
#include "demi/nn/functional/linear.h"

namespace demi {

Variable conv2d(const Variable& x_in, const Variable& weight_in, const Variable& bias_in,
                const Conv2dOptions& options) {
  const auto in = amp::prepare("conv2d", {x_in, weight_in});
  const Variable &x = in[0], &weight = in[1], bias = bias_in_accumulator(bias_in);
  const bool wants_x = x.requires_grad(), wants_w = weight.requires_grad(), wants_b = bias.requires_grad();
  const Tensor y = kernels::conv2d(x.tensor(), weight.tensor(), bias.defined() ? bias.tensor() : Tensor{}, options);
  return record("conv2d", y, {x, weight, bias},
                [=, x = wants_w ? x.tensor() : Tensor{}, w = wants_x ? weight.tensor() : Tensor{},
                 shape = x.shape()](const Tensor& dy) {
                  Tensor dx, dw, db;
                  if (wants_x) dx = kernels::conv2d_dgrad(dy, w, shape, options);
                  if (wants_w) {
                    dw = gradient_buffer(weight, dy.dtype());
                    kernels::conv2d_wgrad(dy, x, options, dw);
                  }
                  if (wants_b) db = kernels::bias_grad(dy);
                  return std::vector<Tensor>{dx, dw, db};
                });
}

}  // namespace demi
