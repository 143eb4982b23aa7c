// Matrix product and linear map, and what a bias needs in mixed precision.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

// a: [m, k] (or [k, m] transposed), b: [k, n] (or [n, k] transposed) -> [m, n].
Variable matmul(const Variable& a, const Variable& b, bool transpose_a = false, bool transpose_b = false);

// x: [..., in], weight: [out, in], bias: [out] or undefined -> [..., out].
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {});

// A bias in the dtype that sums are held in, FP32 (FP64 for FP64): it is added there, before the one rounding.
Variable bias_in_accumulator(const Variable& bias);

}  // namespace demi
