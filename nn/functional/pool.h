// Max, average and global average pooling of NHWC images; shapes and options in kernels/pool.h.
#pragma once

#include "demi/autograd/variable.h"
#include "demi/kernels/pool.h"

namespace demi {

using Pool2dOptions = kernels::Pool2dOptions;

// [N, H, W, C] -> [N, P, Q, C].
Variable max_pool2d(const Variable& x, const Pool2dOptions& options = {});
Variable avg_pool2d(const Variable& x, const Pool2dOptions& options = {});
Variable global_avg_pool(const Variable& x);  // [N, H, W, C] -> [N, C]

}  // namespace demi
