// What happens to gradients between backward and the optimizer: the finite check, unscaling, the norm, clipping.
// Flags and factors are one-element tensors in device memory, so that nothing here synchronizes.
#pragma once

#include <vector>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(
    // found (int32) becomes 1 when an element is infinite or NaN; it is never set back here.
    void check_finite(const Tensor& x, Tensor& found);
    // y (FP32) = x / scale, with 1/scale formed in FP64 and rounded to FP32; found as above, judged on x, before the
    // product.
    void unscale(const Tensor& x, const Tensor& scale, Tensor& found, Tensor& y);
    // total (FP64 on the CPU, FP32 on CUDA is allowed as accumulator inside; stored FP32) += sum of x^2.
    void add_squares(const Tensor& x, Tensor& total);
    // norm = sqrt(total), coefficient = min(1, max_norm / (norm + 1e-6)); 1 where the norm is not finite. In FP32, as
    // PyTorch.
    void norm_and_coefficient(const Tensor& total, double max_norm, Tensor& norm, Tensor& coefficient);
    // x = min(max(x, -limit), limit), NaN stays NaN.
    void clip_value(Tensor& x, double limit);)

inline void check_finite(const Tensor& x, Tensor& found) {
  check_same_device("check_finite", x, found);
  DEMI_CHECK(found.dtype() == DType::I32 && found.numel() == 1, "[check_finite] the flag is one int32");
  if (x.numel() > 0) DEMI_DISPATCH(x, check_finite, x, found);
}

// x: FP32, FP16 or BF16; y: FP32 of x's shape, may be x itself.
inline void unscale(const Tensor& x, const Tensor& scale, Tensor& found, Tensor& y) {
  check_same_device("unscale", x, scale);
  check_same_device("unscale", x, found);
  DEMI_CHECK(x.shape() == y.shape() && y.dtype() == DType::F32, "[unscale] {} {} into {} {}", x.dtype(), x.shape(),
             y.dtype(), y.shape());
  DEMI_CHECK(scale.dtype() == DType::F32 && scale.numel() == 1 && found.dtype() == DType::I32 && found.numel() == 1,
             "[unscale] scale is one fp32, the flag one int32");
  if (x.numel() > 0) DEMI_DISPATCH(x, unscale, x, scale, found, y);
}

// The L2 norm over all tensors together: one FP32 element. No tensors give 0. Squares are summed in FP32 or wider,
// blocks in a fixed order.
Tensor l2_norm(const std::vector<Tensor>& tensors);

struct ClipResult {
  Tensor norm, coefficient;  // one FP32 element each
};
// The norm of all gradients together and what clip-by-norm multiplies them with; apply it with scale_by_into().
ClipResult clip_coefficient(const std::vector<Tensor>& gradients, double max_norm);

inline void clip_value(Tensor& x, double limit) {
  DEMI_CHECK(limit >= 0, "[clip_value] the limit is not negative: {}", limit);
  if (x.numel() > 0) DEMI_DISPATCH(x, clip_value, x, limit);
}

}  // namespace demi::kernels
