#include "demi/nn/functional/batch_norm.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/batch_norm.h"

namespace demi {

Variable batch_norm(const Variable& x_in, const BatchNormArguments& a) {
  const auto in = amp::prepare("batch_norm", {x_in, a.residual});
  const Variable &x = in[0], &residual = in[1];
  const Tensor weight = a.weight.defined() ? a.weight.tensor() : Tensor{},
               bias = a.bias.defined() ? a.bias.tensor() : Tensor{};
  const Tensor added = residual.defined() ? residual.tensor() : Tensor{};
  const kernels::BatchNormOptions options{a.momentum, a.eps, a.relu};
  Buffer mean = a.running_mean, var = a.running_var;
  Tensor none_mean, none_var;
  const kernels::BatchNormResult r =
      a.training
          ? kernels::batch_norm_train(x.tensor(), weight, bias, added, mean.defined() ? mean.tensor() : none_mean,
                                      var.defined() ? var.tensor() : none_var, options)
          : kernels::batch_norm_eval(x.tensor(), weight, bias, added, mean.defined() ? mean.tensor() : none_mean,
                                     var.defined() ? var.tensor() : none_var, options);
  const bool wants_residual = residual.requires_grad(),
             wants_parameters = a.weight.requires_grad() || a.bias.requires_grad();
  return record("batch_norm", r.y, {x, a.weight, a.bias, residual},
                [=, gamma = a.weight, beta = a.bias, relu = a.relu, training = a.training, x = x.tensor(),
                 saved = kernels::BatchNormResult{a.relu ? r.y : Tensor{}, r.mean, r.inv_std}](const Tensor& dy) {
                  Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device()), dresidual, dweight, dbias;
                  if (wants_residual) dresidual = relu ? Tensor::empty(x.shape(), x.dtype(), x.device()) : dy;
                  if (wants_parameters) {
                    dweight = gradient_buffer(gamma, saved.mean.dtype());
                    dbias = gradient_buffer(beta, saved.mean.dtype());
                  }
                  Tensor masked = relu ? dresidual : Tensor{};  // without a ReLU the residual's gradient is dy itself
                  kernels::batch_norm_backward(dy, x, saved.y, weight, saved, relu, training, dx, masked, dweight,
                                               dbias);
                  return std::vector<Tensor>{dx, dweight, dbias, dresidual};
                });
}

}  // namespace demi
