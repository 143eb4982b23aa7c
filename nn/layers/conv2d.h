// Conv2d: a convolution that owns its filters and its bias.
#pragma once

#include "demi/nn/functional/conv2d.h"
#include "demi/nn/module.h"

namespace demi::nn {

struct Conv2dConfig {
  int64_t in = 0, out = 0;  // channels
  int64_t kernel = 3, stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};

// 2-D convolution of NHWC images. weight: [out, kernel, kernel, in / groups], bias: [out]; both uniform in
// +-1 / sqrt(fan_in) at first, as in PyTorch.
class Conv2d : public Module {
 public:
  explicit Conv2d(const Conv2dConfig& config);
  Variable forward(const Variable& x) override;
  const Conv2dConfig& config() const { return config_; }

  Parameter weight, bias;  // bias undefined without one

 private:
  Conv2dConfig config_;
};

}  // namespace demi::nn
