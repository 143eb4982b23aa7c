// Ladders: one operation written several times, each step with one idea more than the step before. For learning from
// and for measuring; the library has kernels of its own. See docs/kernel_ladders.md.
#pragma once

#include <vector>

#include "demi/core/tensor.h"

namespace demi::bench {

// c [m, n] = a [m, k] b [n, k]^T in FP16, sums in FP32: linear's layout, k contiguous in both operands. Each extent
// must be a multiple of what the step says.
struct MatmulStep {
  const char* name;
  const char* adds;  // over the step before, in a few words
  int multiple_m, multiple_n, multiple_k;
  void (*run)(const Tensor& a, const Tensor& b, Tensor& c);
};
const std::vector<MatmulStep>& matmul_steps();

// y, FP32 of shape [], = the sum of all elements of x (FP16 or FP32), added in FP32.
struct SumStep {
  const char* name;
  const char* adds;
  void (*run)(const Tensor& x, Tensor& y);
  double limit = 1e-5;  // of the relative error
};
const std::vector<SumStep>& sum_steps();

// Batch norm's forward pass in training, eps 1e-5: x and y [rows, C] FP16, weight and bias [C] FP32. Steps with 16-byte
// accesses take C in multiples of 8.
struct BatchNormStep {
  const char* name;
  const char* adds;
  void (*run)(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y);
};
const std::vector<BatchNormStep>& batch_norm_steps();

}  // namespace demi::bench
