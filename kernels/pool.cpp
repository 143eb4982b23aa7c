#include "demi/kernels/pool.h"

namespace demi::kernels {

Shape pool2d_shape(const char* op, const Shape& x, const Pool2dOptions& o) {
  DEMI_CHECK(x.rank() == 4, "[{}] takes [N, H, W, C], not shape {}", op, x);
  Shape y = x;
  for (int i = 0; i < 2; ++i) {
    const auto a = static_cast<size_t>(i);
    DEMI_CHECK(o.kernel[a] >= 1 && o.stride[a] >= 1, "[{}] kernel and stride are at least 1", op);
    DEMI_CHECK(o.padding[a] >= 0 && 2 * o.padding[a] <= o.kernel[a], "[{}] padding {} is more than half of kernel {}",
               op, o.padding[a], o.kernel[a]);
    const int64_t padded = x[1 + i] + 2 * o.padding[a];
    DEMI_CHECK(padded >= o.kernel[a], "[{}] kernel {} does not fit into input {} with padding {}", op, o.kernel[a], x,
               o.padding[a]);
    y.set(1 + i, (padded - o.kernel[a]) / o.stride[a] + 1);
  }
  return y;
}

MaxPoolResult max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  MaxPoolResult r;
  const Shape out = pool2d_shape("max_pool2d", x.shape(), options);
  DEMI_CHECK(x.size(1) * x.size(2) <= INT32_MAX, "[max_pool2d] an image of {} x {} is too large", x.size(1), x.size(2));
  r.y = Tensor::empty(out, x.dtype(), x.device());
  r.index = Tensor::empty(out, DType::I32, x.device());
  if (r.y.numel() > 0) DEMI_DISPATCH(x, max_pool2d, x, options, r.y, r.index);
  return r;
}

Tensor max_pool2d_backward(const Tensor& dy, const Tensor& index, const Shape& x_shape, const Pool2dOptions& options) {
  check_same_device("max_pool2d_backward", dy, index);
  DEMI_CHECK(dy.shape() == pool2d_shape("max_pool2d_backward", x_shape, options) && dy.shape() == index.shape(),
             "[max_pool2d_backward] gradient {} with indices {}", dy.shape(), index.shape());
  Tensor dx = Tensor::empty(x_shape, dy.dtype(), dy.device());
  if (dx.numel() > 0) DEMI_DISPATCH(dy, max_pool2d_backward, dy, index, options, dx);
  return dx;
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  Tensor y = Tensor::empty(pool2d_shape("avg_pool2d", x.shape(), options), x.dtype(), x.device());
  if (y.numel() > 0) DEMI_DISPATCH(x, avg_pool2d, x, options, y);
  return y;
}

Tensor avg_pool2d_backward(const Tensor& dy, const Shape& x_shape, const Pool2dOptions& options) {
  DEMI_CHECK(dy.shape() == pool2d_shape("avg_pool2d_backward", x_shape, options),
             "[avg_pool2d_backward] gradient of shape {}", dy.shape());
  Tensor dx = Tensor::empty(x_shape, dy.dtype(), dy.device());
  if (dx.numel() > 0) DEMI_DISPATCH(dy, avg_pool2d_backward, dy, options, dx);
  return dx;
}

}  // namespace demi::kernels
