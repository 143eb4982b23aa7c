#include "demi/nn/functional/reduce.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/scale.h"

namespace demi {
namespace {

using kernels::ReduceOp;

// The reduced shape with extent 1 where an axis went: what broadcasts back.
Shape keepdim_shape(const Shape& shape, const std::vector<int>& axes) {
  Shape kept = shape;
  if (axes.empty())
    for (int i = 0; i < shape.rank(); ++i) kept.set(i, 1);
  for (int a : axes) kept.set(a, 1);
  return kept;
}

Variable add_up(ReduceOp op, const Variable& x_in, const std::vector<int>& axes, bool keepdim) {
  const auto in = amp::prepare(name_of(op), {x_in});
  const Tensor& x = in[0].tensor();
  const Shape shape = x.shape(), kept = keepdim_shape(shape, axes);
  return record(name_of(op), kernels::reduce(op, x, axes, keepdim), in, [=](const Tensor& dy) {
    const Tensor each =
        op == ReduceOp::Sum
            ? dy
            : kernels::scale(dy, static_cast<double>(kept.numel()) / static_cast<double>(shape.numel()));
    return std::vector<Tensor>{kernels::broadcast_to(each.reshape(kept), shape)};
  });
}

}  // namespace

Variable sum(const Variable& x, const std::vector<int>& axes, bool keepdim) {
  return add_up(ReduceOp::Sum, x, axes, keepdim);
}
Variable mean(const Variable& x, const std::vector<int>& axes, bool keepdim) {
  return add_up(ReduceOp::Mean, x, axes, keepdim);
}

Variable amax(const Variable& x_in, const std::vector<int>& axes, bool keepdim) {
  const auto in = amp::prepare("amax", {x_in});
  const Tensor& x = in[0].tensor();
  const Tensor y = kernels::reduce(ReduceOp::Max, x, axes, keepdim);
  const Shape kept = keepdim_shape(x.shape(), axes);
  return record("amax", y, in, [=](const Tensor& dy) {
    return std::vector<Tensor>{kernels::amax_backward(dy.reshape(kept), x, y.reshape(kept), axes)};
  });
}

Tensor argmax(const Variable& x, int axis, bool keepdim) { return kernels::argmax(x.tensor(), axis, keepdim); }

}  // namespace demi
