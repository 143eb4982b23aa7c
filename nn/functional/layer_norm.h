// Layer norm over the last axis; formula and source in kernels/layer_norm.h.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

// x: [..., C]; weight, bias: [C] FP32, or both undefined.
Variable layer_norm(const Variable& x, const Variable& weight = {}, const Variable& bias = {}, double eps = 1e-5);

}  // namespace demi
