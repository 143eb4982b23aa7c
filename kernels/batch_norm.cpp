#include "demi/kernels/batch_norm.h"

namespace demi::kernels {
namespace {

DType statistics_dtype(const Tensor& x) { return x.dtype() == DType::F64 ? DType::F64 : DType::F32; }

void check_vector(const Tensor& x, const Tensor& v, const char* what) {
  if (!v.defined()) return;
  check_same_device("batch_norm", x, v);
  DEMI_CHECK(v.shape() == Shape{x.size(-1)} && v.dtype() == statistics_dtype(x),
             "[batch_norm] {} is {} [{}], not {} {}", what, statistics_dtype(x), x.size(-1), v.dtype(), v.shape());
}

void check_input(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual) {
  DEMI_CHECK(x.rank() >= 2, "[batch_norm] takes [..., C] with at least two axes, not shape {}", x.shape());
  DEMI_CHECK(is_floating(x.dtype()), "[batch_norm] takes a floating dtype, not {}", x.dtype());
  DEMI_CHECK(weight.defined() == bias.defined(), "[batch_norm] weight and bias come together or not at all");
  check_vector(x, weight, "weight");
  check_vector(x, bias, "bias");
  if (!residual.defined()) return;
  check_same_device("batch_norm", x, residual);
  DEMI_CHECK(residual.shape() == x.shape() && residual.dtype() == x.dtype(),
             "[batch_norm] residual {} {} of an input {} {}", residual.dtype(), residual.shape(), x.dtype(), x.shape());
}

}  // namespace

BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                                 Tensor& running_mean, Tensor& running_var, const BatchNormOptions& options,
                                 Tensor num_batches_tracked) {
  check_input(x, weight, bias, residual);
  DEMI_CHECK(running_mean.defined() == running_var.defined(),
             "[batch_norm] running mean and variance come together or not at all");
  check_vector(x, running_mean, "running_mean");
  check_vector(x, running_var, "running_var");
  if (num_batches_tracked.defined()) {
    check_same_device("batch_norm", x, num_batches_tracked);
    DEMI_CHECK(num_batches_tracked.shape() == Shape{} && num_batches_tracked.dtype() == DType::I64,
               "[batch_norm] num_batches_tracked is one int64, not {} {}", num_batches_tracked.dtype(),
               num_batches_tracked.shape());
  }
  const int64_t channels = x.size(-1), rows = channels > 0 ? x.numel() / channels : 0;
  DEMI_CHECK(rows > 1,
             "[batch_norm] training needs more than one value a channel, shape {} has {}: use a larger batch "
             "(drop_last), or eval()",
             x.shape(), rows);
  BatchNormResult r;
  r.y = Tensor::empty(x.shape(), x.dtype(), x.device());
  r.mean = Tensor::empty({channels}, statistics_dtype(x), x.device());
  r.inv_std = Tensor::empty({channels}, statistics_dtype(x), x.device());
  DEMI_DISPATCH(x, batch_norm_statistics, x, options.momentum, options.eps, running_mean, running_var,
                num_batches_tracked, r.mean, r.inv_std);
  DEMI_DISPATCH(x, batch_norm_apply, x, r.mean, r.inv_std, weight, bias, residual, options.relu, r.y);
  return r;
}

BatchNormResult batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                                const Tensor& running_mean, const Tensor& running_var,
                                const BatchNormOptions& options) {
  check_input(x, weight, bias, residual);
  DEMI_CHECK(running_mean.defined() && running_var.defined(), "[batch_norm] eval needs running statistics");
  check_vector(x, running_mean, "running_mean");
  check_vector(x, running_var, "running_var");
  BatchNormResult r;
  r.y = Tensor::empty(x.shape(), x.dtype(), x.device());
  r.mean = running_mean.clone();  // backward must see what forward saw, whatever happens to the running mean
  r.inv_std = Tensor::empty(running_var.shape(), running_var.dtype(), x.device());
  if (x.size(-1) == 0) return r;
  DEMI_DISPATCH(x, batch_norm_inv_std, running_var, options.eps, r.inv_std);
  if (x.numel() > 0)
    DEMI_DISPATCH(x, batch_norm_apply, x, r.mean, r.inv_std, weight, bias, residual, options.relu, r.y);
  return r;
}

void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight,
                         const BatchNormResult& saved, bool relu, bool training, Tensor& dx, Tensor& dresidual,
                         Tensor& dweight, Tensor& dbias) {
  check_same_device("batch_norm_backward", dy, x);
  DEMI_CHECK(dy.shape() == x.shape() && dy.dtype() == x.dtype(), "[batch_norm_backward] gradient {} {} of {} {}",
             dy.dtype(), dy.shape(), x.dtype(), x.shape());
  DEMI_CHECK(dweight.defined() == dbias.defined(),
             "[batch_norm_backward] dweight and dbias come together or not at all");
  check_vector(x, dweight, "dweight");
  check_vector(x, dbias, "dbias");
  if (x.numel() == 0) {
    if (dweight.defined()) dweight.zero(), dbias.zero();
    return;
  }
  DEMI_DISPATCH(x, batch_norm_backward, dy, x, y, weight, saved.mean, saved.inv_std, relu, training, dx, dresidual,
                dweight, dbias);
}

}  // namespace demi::kernels
