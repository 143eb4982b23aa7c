// Hand-written kernels around cuDNN: what changes the channel count, and convolutions that no engine takes.
#pragma once

#include "demi/kernels/conv2d.h"

namespace demi::kernels::cuda {

// The tensor with another first and last extent: what both have is copied, what only `out` has becomes 0. Any dtype of
// 2 or 4 bytes, any alignment.
void copy_channels(const Tensor& in, Tensor& out);

// out [C, R, S, K] = the FP32 filter w [K, R, S, C] turned by 180 degrees, its channels exchanged.
void turn_filter(const Tensor& w, Tensor& out);

// The same results as cuDNN's, slower, for every case: kernels/conv2d.h has the shapes.
void conv_direct(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, Tensor& y);
void conv_direct_dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx);
void conv_direct_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw);

// Keeps the stream busy for about this long, so that what is launched meanwhile then runs without gaps.
void hold_stream(Device device, int microseconds);

}  // namespace demi::kernels::cuda
