#include "demi/nn/functional/elementwise.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/unary.h"

namespace demi {
namespace {

using kernels::UnaryOp;

Variable unary(const char* name, UnaryOp op, const Variable& x_in, double a = 0, double b = 0) {
  const auto in = amp::prepare(name, {x_in});
  const Tensor& x = in[0].tensor();
  const Tensor y = kernels::unary(op, x, a, b);
  return record(
      name, y, in,
      [=, x = kernels::backward_needs_input(op) ? x : Tensor{}, y = kernels::backward_needs_output(op) ? y : Tensor{}](
          const Tensor& dy) { return std::vector<Tensor>{kernels::unary_backward(op, dy, x, y, a, b)}; });
}

}  // namespace

Variable neg(const Variable& x) { return unary("neg", UnaryOp::Neg, x); }
Variable abs(const Variable& x) { return unary("abs", UnaryOp::Abs, x); }
Variable square(const Variable& x) { return unary("square", UnaryOp::Square, x); }
Variable sqrt(const Variable& x) { return unary("sqrt", UnaryOp::Sqrt, x); }
Variable rsqrt(const Variable& x) { return unary("rsqrt", UnaryOp::Rsqrt, x); }
Variable reciprocal(const Variable& x) { return unary("reciprocal", UnaryOp::Reciprocal, x); }
Variable exp(const Variable& x) { return unary("exp", UnaryOp::Exp, x); }
Variable log(const Variable& x) { return unary("log", UnaryOp::Log, x); }
Variable pow(const Variable& x, double exponent) { return unary("pow", UnaryOp::Pow, x, exponent); }
Variable clamp(const Variable& x, double low, double high) {
  DEMI_CHECK(low <= high, "[clamp] the low end {} is above the high end {}", low, high);
  return unary("clamp", UnaryOp::Clamp, x, low, high);
}
Variable relu(const Variable& x) { return unary("relu", UnaryOp::Relu, x); }
Variable leaky_relu(const Variable& x, double negative_slope) {
  DEMI_CHECK(negative_slope >= 0, "[leaky_relu] negative_slope is {}, not 0 or more", negative_slope);
  return unary("leaky_relu", UnaryOp::LeakyRelu, x, negative_slope);
}
Variable tanh(const Variable& x) { return unary("tanh", UnaryOp::Tanh, x); }
Variable sigmoid(const Variable& x) { return unary("sigmoid", UnaryOp::Sigmoid, x); }
Variable silu(const Variable& x) { return unary("silu", UnaryOp::Silu, x); }
Variable gelu(const Variable& x) { return unary("gelu", UnaryOp::Gelu, x); }
Variable softplus(const Variable& x) { return unary("softplus", UnaryOp::Softplus, x); }

}  // namespace demi
