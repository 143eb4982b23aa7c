// What the libraries chose for an op that has run, and where tensor cores were missed, why. Empty on the CPU.
#pragma once

#include <string>

#include "demi/bench/shapes.h"

namespace demi::bench {

// C [m, n] = A [m, k] B [k, n], or, for a linear layer, x [m, k] W [n, k]^T + bias.
std::string gemm_label(const Request& request, int64_t m, int64_t n, int64_t k, bool linear, bool odd);

enum class ConvKind : uint8_t { Fprop, FpropBias, Dgrad, Wgrad };
std::string conv_label(const Request& request, const Convolution& convolution, ConvKind kind);

}  // namespace demi::bench
