// 2-D convolution; shapes and formula in kernels/conv2d.h.
#pragma once

#include "demi/autograd/variable.h"
#include "demi/kernels/conv2d.h"

namespace demi {

using Conv2dOptions = kernels::Conv2dOptions;

// x: [N, H, W, C], weight: [K, R, S, C / groups], bias: [K] or undefined -> [N, P, Q, K].
Variable conv2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv2dOptions& options = {});

}  // namespace demi
