// BatchNorm2d, and convolution, batch norm and ReLU in one call.
#pragma once

#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/layers/conv2d.h"
#include "demi/nn/module.h"

namespace demi::nn {

struct BatchNorm2dConfig {
  int64_t channels = 0;
  double momentum = 0.1, eps = 1e-5;
  bool affine = true;  // weight and bias
};

// Batch norm over all axes but the last. Parameters and statistics are FP32 whatever the input is.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(const BatchNorm2dConfig& config);
  explicit BatchNorm2d(int64_t channels) : BatchNorm2d(BatchNorm2dConfig{.channels = channels}) {}
  Variable forward(const Variable& x) override { return normalize(x, {}, false); }
  // The same with what often follows it, in the same pass: + residual (unless undefined), then ReLU.
  Variable normalize(const Variable& x, const Variable& residual, bool relu);

  Parameter weight, bias;  // undefined without affine
  Buffer running_mean, running_var;
  Buffer num_batches_tracked;  // int64: training batches that the statistics have seen, as PyTorch counts them

 private:
  BatchNorm2dConfig config_;
};

// Convolution, then one pass for batch norm (+ residual) and ReLU: the numbers of relu(bn(conv(x)) + residual) to
// rounding.
Variable conv_bn_relu(Conv2d& conv, BatchNorm2d& bn, const Variable& x);
Variable conv_bn_add_relu(Conv2d& conv, BatchNorm2d& bn, const Variable& x, const Variable& residual);

}  // namespace demi::nn
