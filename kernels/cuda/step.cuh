// The part that SGD and Adam share: the operands of one run of flat storage, as a kernel reads and writes them.
#pragma once

#include <type_traits>

#include "demi/kernels/cuda/device.cuh"
#include "demi/kernels/optimizer_step.h"

namespace demi::kernels::cuda {

// StepOperands as pointers; all but `w`, `grad` and `lr` may be null.
template <typename G>
struct Run {
  float* w;
  const G* grad;
  Half* copy_f16;
  BFloat16* copy_bf16;
  const float *lr, *scale;
  const int *skip, *count;
  int64_t n;

  __device__ bool skipped() const { return skip != nullptr && *skip != 0; }  // an overflow: this step never happened
  __device__ float inv_scale() const {
    return scale == nullptr ? 1.0f : static_cast<float>(1.0 / static_cast<double>(*scale));
  }
  __device__ int steps_before() const { return count == nullptr ? 0 : *count; }

  // N new masters and, rounded, their copies.
  template <int N>
  __device__ void store(int64_t i, const float (&masters)[N]) const {
    store_floats<N>(w + i, masters);
    if (copy_f16 != nullptr) store_floats<N>(copy_f16 + i, masters);
    if (copy_bf16 != nullptr) store_floats<N>(copy_bf16 + i, masters);
  }
  bool aligned() const { return aligned16(w) && aligned16(grad) && aligned16(copy_f16) && aligned16(copy_bf16); }
};

template <typename G>
Run<G> run_of(const StepOperands& operands) {
  Tensor master = operands.master, copy_f16 = operands.copy_f16, copy_bf16 = operands.copy_bf16;
  return {master.mutable_data<float>(),
          operands.grad.data<G>(),
          copy_f16.defined() ? copy_f16.mutable_data<Half>() : nullptr,
          copy_bf16.defined() ? copy_bf16.mutable_data<BFloat16>() : nullptr,
          operands.lr.data<float>(),
          operands.scale.defined() ? operands.scale.data<float>() : nullptr,
          operands.skip.defined() ? operands.skip.data<int>() : nullptr,
          operands.count.defined() ? operands.count.data<int>() : nullptr,
          master.numel()};
}

// f(N, i) for every N weights, then f(1, i) for each of the last n % N; the first is a constant, a template argument.
template <int N, typename F>
__device__ __forceinline__ void for_weights(int64_t n, const F& f) {
  DEMI_GRID_STRIDE(i, n / N) f(std::integral_constant<int, N>{}, i * N);
  if constexpr (N > 1) {
    DEMI_GRID_STRIDE(i, n % N) f(std::integral_constant<int, 1>{}, n - 1 - i);
  }
}

}  // namespace demi::kernels::cuda
