#include "demi/nn/layers/conv2d.h"

#include <cmath>

#include "demi/nn/init.h"

namespace demi::nn {

Conv2d::Conv2d(const Conv2dConfig& c) : config_(c) {
  DEMI_CHECK(c.in > 0 && c.out > 0 && c.kernel > 0, "[Conv2d] {} input and {} output channels with kernel {}", c.in,
             c.out, c.kernel);
  DEMI_CHECK(c.groups > 0 && c.in % c.groups == 0 && c.out % c.groups == 0,
             "[Conv2d] {} and {} channels do not divide into {} groups", c.in, c.out, c.groups);
  weight = Parameter(init::kaiming_uniform({c.out, c.kernel, c.kernel, c.in / c.groups}, std::sqrt(5.0)));
  weight.parameter().channels = c.in / c.groups;
  register_parameter("weight", weight);
  if (!c.bias) return;
  bias = Parameter(init::uniform({c.out}, 1.0 / std::sqrt(static_cast<double>(init::fan_in(weight.shape())))));
  register_parameter("bias", bias);
}

Variable Conv2d::forward(const Variable& x) {
  const Conv2dConfig& c = config_;
  return conv2d(x, weight, bias,
                {.stride = {c.stride, c.stride},
                 .padding = {c.padding, c.padding},
                 .dilation = {c.dilation, c.dilation},
                 .groups = c.groups});
}

}  // namespace demi::nn
