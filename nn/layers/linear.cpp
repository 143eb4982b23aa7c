#include "demi/nn/layers/linear.h"

#include <cmath>

#include "demi/nn/init.h"

namespace demi::nn {

Linear::Linear(const LinearConfig& c) {
  DEMI_CHECK(c.in > 0 && c.out > 0, "[Linear] {} inputs and {} outputs", c.in, c.out);
  DEMI_CHECK(c.channels >= 0 && (c.channels == 0 || c.in % c.channels == 0),
             "[Linear] {} inputs are no images of {} channels", c.in, c.channels);
  weight = Parameter(init::kaiming_uniform({c.out, c.in}, std::sqrt(5.0)));
  weight.parameter().channels = c.channels;
  register_parameter("weight", weight);
  if (!c.bias) return;
  bias = Parameter(init::uniform({c.out}, 1.0 / std::sqrt(static_cast<double>(c.in))));
  register_parameter("bias", bias);
}

}  // namespace demi::nn
