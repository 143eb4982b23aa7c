// 2-D convolution (cross-correlation, as everywhere in this field) and its two gradients, for any kernel size, stride,
// padding, dilation and groups. Images NHWC, filters [K, R, S, C / groups].
//   y[n,p,q,k] = bias[k] + sum_{r,s,c} x[n, p*stride + r*dilation - padding, ..., c] * w[k,r,s,c]
// 16-bit operands: products accumulated in FP32, rounded once. FP32 is IEEE FP32 unless float32_math() says Tf32.
#pragma once

#include <array>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

struct Conv2dOptions {  // each pair is {height, width}
  std::array<int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
  friend bool operator==(const Conv2dOptions&, const Conv2dOptions&) = default;
};

// Backends get consistent shapes with no extent 0 in any of them. bias: FP32 [K] (FP64 for FP64) or undefined.
DEMI_BACKENDS(void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options,
                          Tensor& y);
              void conv2d_dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx);
              void conv2d_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw);)

// The shape of y: [N, P, Q, K] with P = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1, Q likewise. Throws
// Error naming both shapes when they do not fit.
Shape conv2d_shape(const Shape& x, const Shape& w, const Conv2dOptions& options);

// x: [N, H, W, C], w: [K, R, S, C / groups] in one floating dtype, bias: [K] FP32 or undefined -> y: [N, P, Q, K].
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options);

// The gradient of the input, of shape x_shape. Sizes 0 give zeros.
Tensor conv2d_dgrad(const Tensor& dy, const Tensor& w, const Shape& x_shape, const Conv2dOptions& options);

// The gradient of the filter, written to dw, which has the filter's shape and dy's dtype.
void conv2d_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw);

}  // namespace demi::kernels
