#include "demi/nn/layers/batch_norm.h"

#include "demi/amp/autocast.h"
#include "demi/nn/init.h"

namespace demi::nn {

BatchNorm2d::BatchNorm2d(const BatchNorm2dConfig& c) : config_(c) {
  DEMI_CHECK(c.channels > 0, "[BatchNorm2d] {} channels", c.channels);
  const Shape shape{c.channels};
  if (c.affine) {
    weight = Parameter(init::ones(shape));
    bias = Parameter(init::zeros(shape));
    register_parameter("weight", weight);
    register_parameter("bias", bias);
  }
  running_mean = Buffer(init::zeros(shape));
  running_var = Buffer(init::ones(shape));
  num_batches_tracked = Buffer(Tensor::zeros({}, DType::I64));
  register_buffer("running_mean", running_mean);
  register_buffer("running_var", running_var);
  register_buffer("num_batches_tracked", num_batches_tracked);
}

Variable BatchNorm2d::normalize(const Variable& x, const Variable& residual, bool relu) {
  const Variable input = precision() == DType::F32 && is_16bit(x.dtype()) ? cast(x, DType::F32) : x;
  return batch_norm(input, {.weight = weight,
                            .bias = bias,
                            .running_mean = running_mean,
                            .running_var = running_var,
                            .num_batches_tracked = num_batches_tracked,
                            .training = training(),
                            .momentum = config_.momentum,
                            .eps = config_.eps,
                            .residual = residual,
                            .relu = relu});
}

Variable conv_bn_relu(Conv2d& conv, BatchNorm2d& bn, const Variable& x) { return bn.normalize(conv(x), {}, true); }

Variable conv_bn_add_relu(Conv2d& conv, BatchNorm2d& bn, const Variable& x, const Variable& residual) {
  return bn.normalize(conv(x), residual, true);
}

}  // namespace demi::nn
