// Batch norm over all axes but the last, with an optional residual and ReLU in the same pass; formula and source in
// kernels/batch_norm.h.
#pragma once

#include "demi/autograd/parameter.h"
#include "demi/autograd/variable.h"

namespace demi {

struct BatchNormArguments {
  Variable weight{}, bias{};             // [C] FP32; either may be undefined
  Buffer running_mean{}, running_var{};  // [C]; may be undefined in training
  Buffer num_batches_tracked{};          // one int64, +1 a training batch; may be undefined
  bool training = true;
  double momentum = 0.1, eps = 1e-5;
  Variable residual{};  // added before the ReLU; undefined for none
  bool relu = false;
};

// x: [..., C] in any floating dtype; statistics and parameters stay FP32. Running statistics move in training.
Variable batch_norm(const Variable& x, const BatchNormArguments& arguments);

}  // namespace demi
