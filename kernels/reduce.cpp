// Reductions over any axes, one run of adjacent axes after another, with FP32 (FP64 for FP64) in between.
#include "demi/kernels/reduce.h"

#include "demi/kernels/cast.h"
#include "demi/kernels/permute.h"

namespace demi::kernels {
namespace {

DType wide_of(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

// Which axes of x are reduced; none given means all.
std::vector<bool> marked_axes(const char* op, const Shape& shape, const std::vector<int>& axes) {
  std::vector<bool> marked(static_cast<size_t>(shape.rank()), axes.empty());
  for (int a : axes) {
    const auto at = static_cast<size_t>(shape.axis(a));
    DEMI_CHECK(!marked[at], "[{}] axis {} of shape {} is named twice", op, a, shape);
    marked[at] = true;
  }
  return marked;
}

Shape reduced_shape(const Shape& shape, const std::vector<bool>& marked, bool keepdim) {
  Shape r;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!marked[static_cast<size_t>(i)])
      r.append(shape[i]);
    else if (keepdim)
      r.append(1);
  }
  return r;
}

// The runs of marked axes, as views of x; axes of extent 1 belong to any run. The last run comes first: it has the
// smallest stride. Each view already has the runs after it reduced.
std::vector<AxisView> runs_of(const Shape& shape, const std::vector<bool>& marked) {
  std::vector<AxisView> runs;
  int64_t inner = 1, extent = 1, outer = shape.numel();
  const auto close = [&] {
    if (extent != 1) runs.push_back({outer, extent, inner});
    extent = 1;
  };
  for (int i = shape.rank(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (marked[static_cast<size_t>(i)]) {
      extent *= shape[i];
      outer /= shape[i];
    } else {
      close();
      inner *= shape[i];
      outer /= shape[i];
    }
  }
  close();
  return runs;
}

Tensor reduce_marked(ReduceOp op, const Tensor& x, const std::vector<bool>& marked, const Shape& out, DType dtype) {
  DEMI_CHECK(is_floating(x.dtype()), "[{}] takes a floating dtype, not {}", name_of(op), x.dtype());
  int64_t count = 1;
  for (int i = 0; i < x.rank(); ++i)
    if (marked[static_cast<size_t>(i)]) count *= x.size(i);
  DEMI_CHECK(count > 0 || op == ReduceOp::Sum, "[{}] of no elements: shape {} has an extent of 0 there", name_of(op),
             x.shape());
  if (x.numel() == 0) return Tensor::zeros(out, dtype, x.device());

  const std::vector<AxisView> runs = runs_of(x.shape(), marked);
  Tensor value = x;
  for (size_t i = 0; i < runs.size(); ++i) {
    const AxisView& run = runs[i];
    const bool last = i + 1 == runs.size();
    Tensor y = Tensor::empty(last ? out : Shape{run.outer, run.inner}, last ? dtype : wide_of(x.dtype()), x.device());
    const double divisor = last && op == ReduceOp::Mean ? static_cast<double>(count) : 1;
    DEMI_DISPATCH(x, reduce, op, value, run, divisor, y);
    value = y;
  }
  if (!runs.empty()) return value;
  Tensor y = Tensor::empty(out, dtype, x.device());
  cast_into(x.reshape(out), y);
  return y;
}

}  // namespace

Tensor reduce(ReduceOp op, const Tensor& x, const std::vector<int>& axes, bool keepdim, DType dtype) {
  const std::vector<bool> marked = marked_axes(name_of(op), x.shape(), axes);
  return reduce_marked(op, x, marked, reduced_shape(x.shape(), marked, keepdim), dtype);
}

Tensor reduce(ReduceOp op, const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return reduce(op, x, axes, keepdim, x.dtype());
}

Tensor sum_to(const Tensor& x, const Shape& shape, DType dtype) {
  DEMI_CHECK(broadcast("sum_to", shape, x.shape()) == x.shape(), "[sum_to] shape {} does not broadcast to {}", shape,
             x.shape());
  if (x.shape() == shape) return cast(x, dtype);
  std::vector<bool> marked(static_cast<size_t>(x.rank()), false);
  for (int i = 1; i <= x.rank(); ++i)
    marked[static_cast<size_t>(x.rank() - i)] = i > shape.rank() || (shape[-i] == 1 && x.size(-i) != 1);
  return reduce_marked(ReduceOp::Sum, x, marked, shape, dtype);
}

Tensor bias_grad(const Tensor& dy) {
  DEMI_CHECK(dy.rank() >= 1, "[bias_grad] takes [..., C], not a scalar");
  return sum_to(dy, Shape{dy.size(-1)}, wide_of(dy.dtype()));
}

Tensor argmax(const Tensor& x, int axis, bool keepdim) {
  std::vector<bool> marked(static_cast<size_t>(x.rank()), false);
  marked[static_cast<size_t>(x.shape().axis(axis))] = true;
  DEMI_CHECK(x.size(axis) > 0, "[argmax] of no elements: axis {} of shape {}", axis, x.shape());
  Tensor y = Tensor::empty(reduced_shape(x.shape(), marked, keepdim), DType::I64, x.device());
  if (y.numel() > 0) DEMI_DISPATCH(x, argmax, x, axis_view(x.shape(), axis), y);
  return y;
}

Tensor argmax(const Tensor& x) { return argmax(x.flatten(), 0); }

Tensor amax_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const std::vector<int>& axes) {
  check_same_device("amax_backward", dy, x);
  check_same_device("amax_backward", y, x);
  const std::vector<bool> marked = marked_axes("amax_backward", x.shape(), axes);
  DEMI_CHECK(dy.shape() == y.shape() && y.shape() == reduced_shape(x.shape(), marked, true),
             "[amax_backward] gradient {} and maximum {} of an input {}", dy.shape(), y.shape(), x.shape());
  DEMI_CHECK(dy.dtype() == x.dtype() && y.dtype() == x.dtype(), "[amax_backward] dtypes {}, {} and {} differ",
             dy.dtype(), y.dtype(), x.dtype());
  Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (x.numel() == 0) return dx;
  std::vector<AxisView> runs = runs_of(x.shape(), marked);
  if (runs.empty()) runs.push_back({x.numel(), 1, 1});
  if (runs.size() == 1) {
    DEMI_DISPATCH(x, amax_backward, dy, x, y, runs[0], dx);
    return dx;
  }
  // Several runs: the reduced axes are brought together at the end, and taken back afterwards.
  std::vector<int> order, back(static_cast<size_t>(x.rank()));
  for (const bool reduced : {false, true})
    for (int i = 0; i < x.rank(); ++i)
      if (marked[static_cast<size_t>(i)] == reduced) order.push_back(i);
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int>(i);
  const Tensor together = permute(x, order);
  Tensor d = Tensor::empty(together.shape(), x.dtype(), x.device());
  const AxisView view{y.numel(), x.numel() / y.numel(), 1};
  DEMI_DISPATCH(x, amax_backward, dy, together, y, view, d);
  return permute(d, back);
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  DEMI_CHECK(broadcast("broadcast_to", x.shape(), shape) == shape, "[broadcast_to] shape {} does not broadcast to {}",
             x.shape(), shape);
  if (x.shape() == shape) return x;
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if (y.numel() > 0) DEMI_DISPATCH(x, broadcast_copy, x, y);
  return y;
}

}  // namespace demi::kernels
