// Hand-written kernels around cuBLASLt.
#pragma once

#include <string>

#include "demi/kernels/matmul.h"

namespace demi::kernels::cuda {

// out[i, j] = in[i, j] + bias[j], added in FP32 and rounded once. in: out's dtype or FP32; bias: FP32 [last extent of
// out]. `in` and `out` may be the same memory.
void add_bias(const Tensor& in, const Tensor& bias, Tensor& out);

// The contract of gemm() in kernels/matmul.h for FP32, FP16 and BF16, for any alignment; also k = 0.
void gemm_naive(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, Tensor& c);

// What gemm() runs for these operands: cuBLASLt's algorithm with its settings, "naive" where it has none.
struct GemmEngine {
  std::string name;
  bool tensor_cores = false;
};
GemmEngine gemm_engine(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                       const Tensor& c);

}  // namespace demi::kernels::cuda
