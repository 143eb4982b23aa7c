#include "demi/kernels/conv2d.h"

#include "demi/kernels/cast.h"
#include "demi/kernels/reduce.h"

namespace demi::kernels {

Shape conv2d_shape(const Shape& x, const Shape& w, const Conv2dOptions& o) {
  DEMI_CHECK(x.rank() == 4 && w.rank() == 4, "[conv2d] takes x [N, H, W, C] and w [K, R, S, C/groups], not {} and {}",
             x, w);
  DEMI_CHECK(o.groups >= 1, "[conv2d] groups is at least 1, not {}", o.groups);
  DEMI_CHECK(x[3] == w[3] * o.groups, "[conv2d] input {} has {} channels, the filter {} with {} groups takes {}", x,
             x[3], w, o.groups, w[3] * o.groups);
  DEMI_CHECK(w[0] % o.groups == 0, "[conv2d] {} output channels do not divide into {} groups", w[0], o.groups);
  Shape y{x[0], 0, 0, w[0]};
  for (int i = 0; i < 2; ++i) {
    const auto a = static_cast<size_t>(i);
    DEMI_CHECK(o.stride[a] >= 1 && o.dilation[a] >= 1 && o.padding[a] >= 0,
               "[conv2d] stride and dilation are at least 1, padding at least 0");
    const int64_t span = o.dilation[a] * (w[1 + i] - 1) + 1, padded = x[1 + i] + 2 * o.padding[a];
    DEMI_CHECK(w[1 + i] >= 1 && padded >= span, "[conv2d] filter {} does not fit into input {} with padding {}", w, x,
               o.padding[a]);
    y.set(1 + i, (padded - span) / o.stride[a] + 1);
  }
  return y;
}

namespace {
void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_same_device(op, a, b);
  DEMI_CHECK(a.dtype() == b.dtype(), "[{}] dtypes {} and {} differ: cast one", op, a.dtype(), b.dtype());
  DEMI_CHECK(is_floating(a.dtype()), "[{}] takes a floating dtype, not {}", op, a.dtype());
}
}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options) {
  check_operands("conv2d", x, w);
  Tensor y = Tensor::empty(conv2d_shape(x.shape(), w.shape(), options), x.dtype(), x.device());
  if (bias.defined()) {
    const DType wide = x.dtype() == DType::F64 ? DType::F64 : DType::F32;
    check_same_device("conv2d", x, bias);
    DEMI_CHECK(bias.shape() == Shape{w.size(0)} && bias.dtype() == wide, "[conv2d] bias is {} [{}], not {} {}", wide,
               w.size(0), bias.dtype(), bias.shape());
  }
  if (y.numel() == 0) return y;
  if (x.numel() == 0 || w.numel() == 0) {  // nothing to sum: the bias alone
    if (!bias.defined())
      y.zero();
    else
      cast_into(broadcast_to(bias, y.shape()), y);
    return y;
  }
  DEMI_DISPATCH(x, conv2d, x, w, bias, options, y);
  return y;
}

Tensor conv2d_dgrad(const Tensor& dy, const Tensor& w, const Shape& x_shape, const Conv2dOptions& options) {
  check_operands("conv2d_dgrad", dy, w);
  DEMI_CHECK(dy.shape() == conv2d_shape(x_shape, w.shape(), options), "[conv2d_dgrad] gradient {} of an output {}",
             dy.shape(), conv2d_shape(x_shape, w.shape(), options));
  Tensor dx = Tensor::empty(x_shape, dy.dtype(), dy.device());
  if (dx.numel() == 0) return dx;
  if (dy.numel() == 0)
    dx.zero();
  else
    DEMI_DISPATCH(dy, conv2d_dgrad, dy, w, options, dx);
  return dx;
}

void conv2d_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw) {
  check_operands("conv2d_wgrad", dy, x);
  check_operands("conv2d_wgrad", dy, dw);
  DEMI_CHECK(dy.shape() == conv2d_shape(x.shape(), dw.shape(), options), "[conv2d_wgrad] gradient {} of an output {}",
             dy.shape(), conv2d_shape(x.shape(), dw.shape(), options));
  if (dw.numel() == 0) return;
  if (dy.numel() == 0 || x.numel() == 0)
    dw.zero();
  else
    DEMI_DISPATCH(dy, conv2d_wgrad, dy, x, options, dw);
}

}  // namespace demi::kernels
