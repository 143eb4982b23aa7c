// The elementwise functions of one variable; kernels/unary.h says what each computes.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

Variable neg(const Variable& x);
Variable abs(const Variable& x);
Variable square(const Variable& x);
Variable sqrt(const Variable& x);
Variable rsqrt(const Variable& x);
Variable reciprocal(const Variable& x);
Variable exp(const Variable& x);
Variable log(const Variable& x);
Variable pow(const Variable& x, double exponent);
Variable clamp(const Variable& x, double low, double high);
Variable relu(const Variable& x);
Variable leaky_relu(const Variable& x, double negative_slope = 0.01);  // the slope is 0 or more
Variable tanh(const Variable& x);
Variable sigmoid(const Variable& x);
Variable silu(const Variable& x);
Variable gelu(const Variable& x);
Variable softplus(const Variable& x);

}  // namespace demi
