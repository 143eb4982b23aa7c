#include "demi/kernels/gradient.h"

namespace demi::kernels {
namespace {

Tensor sum_of_squares(const std::vector<Tensor>& tensors) {
  DEMI_CHECK(!tensors.empty(), "[l2_norm] needs at least one tensor");
  Tensor total = Tensor::zeros({}, DType::F32, tensors[0].device());
  for (const Tensor& x : tensors) {
    check_same_device("l2_norm", x, total);
    if (x.numel() > 0) DEMI_DISPATCH(x, add_squares, x, total);
  }
  return total;
}

}  // namespace

ClipResult clip_coefficient(const std::vector<Tensor>& gradients, double max_norm) {
  DEMI_CHECK(max_norm > 0, "[clip_norm] the largest norm is positive, not {}", max_norm);
  const Tensor total = sum_of_squares(gradients);
  ClipResult r{Tensor::empty({}, DType::F32, total.device()), Tensor::empty({}, DType::F32, total.device())};
  DEMI_DISPATCH(total, norm_and_coefficient, total, max_norm, r.norm, r.coefficient);
  return r;
}

Tensor l2_norm(const std::vector<Tensor>& tensors) { return clip_coefficient(tensors, 1.0).norm; }

}  // namespace demi::kernels
