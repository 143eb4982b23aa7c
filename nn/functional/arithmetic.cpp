#include "demi/nn/functional/arithmetic.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/scale.h"

namespace demi {
namespace {

using kernels::BinaryOp;

// gradients(dy, a, b, wants a, wants b) gives them in dy's shape; broadcasting is undone here.
template <typename Gradients>
Variable binary(BinaryOp op, const Variable& a_in, const Variable& b_in, bool keeps_inputs, Gradients gradients) {
  const auto in = amp::prepare(name_of(op), {a_in, b_in});
  const Tensor &a = in[0].tensor(), &b = in[1].tensor();
  const bool wants_a = in[0].requires_grad(), wants_b = in[1].requires_grad();
  return record(name_of(op), kernels::binary(op, a, b), in,
                [=, a = keeps_inputs ? a : Tensor{}, b = keeps_inputs ? b : Tensor{}, shape_a = a.shape(),
                 shape_b = b.shape()](const Tensor& dy) {
                  auto [da, db] = gradients(dy, a, b, wants_a, wants_b);
                  return std::vector<Tensor>{wants_a ? kernels::sum_to(da, shape_a) : Tensor{},
                                             wants_b ? kernels::sum_to(db, shape_b) : Tensor{}};
                });
}

using Pair = std::pair<Tensor, Tensor>;

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return binary(BinaryOp::Add, a, b, false, [](const Tensor& dy, const Tensor&, const Tensor&, bool, bool) {
    return Pair{dy, dy};
  });
}

Variable sub(const Variable& a, const Variable& b) {
  return binary(BinaryOp::Sub, a, b, false, [](const Tensor& dy, const Tensor&, const Tensor&, bool, bool wants_b) {
    return Pair{dy, wants_b ? kernels::scale(dy, -1.0) : Tensor{}};
  });
}

Variable mul(const Variable& a, const Variable& b) {
  return binary(BinaryOp::Mul, a, b, true,
                [](const Tensor& dy, const Tensor& x, const Tensor& y, bool wants_a, bool wants_b) {
                  return Pair{wants_a ? kernels::mul(dy, y) : Tensor{}, wants_b ? kernels::mul(dy, x) : Tensor{}};
                });
}

// d(a/b)/da = 1/b, d(a/b)/db = -(a/b)/b.
Variable div(const Variable& a, const Variable& b) {
  return binary(BinaryOp::Div, a, b, true, [](const Tensor& dy, const Tensor& x, const Tensor& y, bool, bool wants_b) {
    const Tensor by_a = kernels::div(dy, y);
    return Pair{by_a, wants_b ? kernels::scale(kernels::mul(by_a, kernels::div(x, y)), -1.0) : Tensor{}};
  });
}

Variable maximum(const Variable& a, const Variable& b) {
  return binary(BinaryOp::Maximum, a, b, true,
                [](const Tensor& dy, const Tensor& x, const Tensor& y, bool wants_a, bool wants_b) {
                  return Pair{wants_a ? kernels::maximum_backward(dy, x, y) : Tensor{},
                              wants_b ? kernels::maximum_backward(dy, y, x) : Tensor{}};
                });
}

Variable scale(const Variable& x, double factor) {
  return record("scale", kernels::scale(x.tensor(), factor), {x},
                [factor](const Tensor& dy) { return std::vector<Tensor>{kernels::scale(dy, factor)}; });
}

}  // namespace demi
