#include "demi/nn/functional/batch_norm.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/fill.h"

namespace demi {
namespace {

// Kernels take both of weight and bias or neither: the one that is missing is a constant.
Tensor parameter_or(const Variable& parameter, const Variable& other, double value) {
  if (parameter.defined()) return parameter.tensor();
  return other.defined() ? kernels::full(other.shape(), value, other.dtype(), other.device()) : Tensor{};
}

Tensor gradient_of(const Variable& parameter, const Tensor& like) {
  return parameter.defined() ? gradient_buffer(parameter, like.dtype())
                             : Tensor::empty(like.shape(), like.dtype(), like.device());
}

}  // namespace

Variable batch_norm(const Variable& x_in, const BatchNormArguments& a) {
  const auto in = amp::prepare("batch_norm", {x_in, a.residual});
  const Variable &x = in[0], &residual = in[1];
  const Tensor weight = parameter_or(a.weight, a.bias, 1.0), bias = parameter_or(a.bias, a.weight, 0.0);
  const Tensor added = residual.defined() ? residual.tensor() : Tensor{};
  const kernels::BatchNormOptions options{a.momentum, a.eps, a.relu};
  Buffer mean = a.running_mean, var = a.running_var, batches = a.num_batches_tracked;
  Tensor none_mean, none_var;
  const kernels::BatchNormResult r =
      a.training
          ? kernels::batch_norm_train(x.tensor(), weight, bias, added, mean.defined() ? mean.tensor() : none_mean,
                                      var.defined() ? var.tensor() : none_var, options,
                                      batches.defined() ? batches.tensor() : Tensor{})
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
                    dweight = gradient_of(gamma, saved.mean);
                    dbias = gradient_of(beta, saved.mean);
                  }
                  Tensor masked = relu ? dresidual : Tensor{};  // without a ReLU the residual's gradient is dy itself
                  kernels::batch_norm_backward(dy, x, saved.y, weight, saved, relu, training, dx, masked, dweight,
                                               dbias);
                  return std::vector<Tensor>{dx, dweight, dbias, dresidual};
                });
}

}  // namespace demi
