// Max, average and global average pooling over NHWC images.
#pragma once

#include <array>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

// Each pair is {height, width}. Padding is at most half the kernel. The stride does not follow the kernel.
struct Pool2dOptions {
  std::array<int64_t, 2> kernel{2, 2}, stride{2, 2}, padding{0, 0};
  bool count_include_pad = true;  // average pooling: padding counts in the divisor
};

DEMI_BACKENDS(void max_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y, Tensor& index);
              void max_pool2d_backward(const Tensor& dy, const Tensor& index, const Pool2dOptions& options, Tensor& dx);
              void avg_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y);
              void avg_pool2d_backward(const Tensor& dy, const Pool2dOptions& options, Tensor& dx);)

// The shape of y: [N, P, Q, C] with P = floor((H + 2 padding - kernel) / stride) + 1, Q likewise. Throws Error when the
// kernel does not fit.
Shape pool2d_shape(const char* op, const Shape& x, const Pool2dOptions& options);

struct MaxPoolResult {
  Tensor y, index;  // index: int32, h * W + w of the element taken; always inside the window
};

// x: [N, H, W, C] floating -> [N, P, Q, C]. The first largest in row-major order wins; a NaN wins over everything.
MaxPoolResult max_pool2d(const Tensor& x, const Pool2dOptions& options);
// Each dx element gathers from the windows that hold it, so windows may overlap and nothing is added atomically.
Tensor max_pool2d_backward(const Tensor& dy, const Tensor& index, const Shape& x_shape, const Pool2dOptions& options);

// The mean of each window; sums in FP32, rounded once. Shapes as for max_pool2d.
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options);
Tensor avg_pool2d_backward(const Tensor& dy, const Shape& x_shape, const Pool2dOptions& options);

// Global average pooling is reduce(Mean) over height and width, and broadcast_to() of dy / (H W) backward.

}  // namespace demi::kernels
