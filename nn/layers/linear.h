// Linear: a linear map that owns its matrix and its bias.
#pragma once

#include "demi/nn/functional/linear.h"
#include "demi/nn/module.h"

namespace demi::nn {

struct LinearConfig {
  int64_t in = 0, out = 0;
  bool bias = true;
  // Where x is flattened images [H, W, C]: C. Nothing is computed otherwise; it is for weights that are exchanged with
  // PyTorch (nn/torch_state.h), where images flatten as [C, H, W].
  int64_t channels = 0;
};

// y = x W^T + b for x [..., in]. weight: [out, in], bias: [out]; both uniform in +-1 / sqrt(in) at first, as in
// PyTorch.
class Linear : public Module {
 public:
  explicit Linear(const LinearConfig& config);
  Variable forward(const Variable& x) override { return linear(x, weight, bias); }

  Parameter weight, bias;  // bias undefined without one
};

}  // namespace demi::nn
