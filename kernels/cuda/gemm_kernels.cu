// What cuBLASLt leaves: a bias in FP32 under a 16-bit result, k = 0, and operands that none of its kernels takes.
//   add_bias:   out[i,j] = in[i,j] + bias[j]               bytes: in once, out once
//   gemm_naive: c[i,j] = bias[j] + sum_k a[i,k] b[k,j]     2 m n k operations, one thread an element, not tiled
#include "demi/kernels/cuda/device.cuh"
#include "demi/kernels/cuda/gemm_kernels.h"

namespace demi::kernels::cuda {
namespace {

template <typename In, typename Out>
__global__ void add_bias_kernel(const In* in, const float* bias, Out* out, int64_t total, int64_t columns) {
  DEMI_GRID_STRIDE(i, total) { out[i] = Out(float(in[i]) + bias[i % columns]); }
}

// a[i, l] is a[i * a_row + l * a_step], b[l, j] is b[l * b_step + j * b_column].
template <typename In, typename Out>
__global__ void gemm_kernel(const In* a, int64_t a_row, int64_t a_step, const In* b, int64_t b_step, int64_t b_column,
                            const float* bias, Out* c, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kRun = 64;  // sums of short runs are added up: long plain sums in FP32 lose digits
  DEMI_GRID_STRIDE(e, m * n) {
    const int64_t i = e / n, j = e - i * n;
    float sum = 0.0f;
    for (int64_t first = 0; first < k; first += kRun) {
      const int64_t last = first + kRun < k ? first + kRun : k;
      float run = 0.0f;
      for (int64_t l = first; l < last; ++l)
        run = fmaf(float(a[i * a_row + l * a_step]), float(b[l * b_step + j * b_column]), run);
      sum += run;
    }
    c[e] = Out(bias ? sum + bias[j] : sum);
  }
}

}  // namespace

void add_bias(const Tensor& in, const Tensor& bias, Tensor& out) {
  if (out.numel() == 0) return;
  const int64_t columns = out.size(-1);
  const auto launch = [&](auto in_type, auto out_type) {
    using In = typename decltype(in_type)::type;
    using Out = typename decltype(out_type)::type;
    add_bias_kernel<In, Out><<<blocks_for(out.numel(), out), kThreads, 0, stream_of(out)>>>(
        in.data<In>(), bias.data<float>(), out.mutable_data<Out>(), out.numel(), columns);
  };
  visit_training(out.dtype(), "bias", [&](auto type) {
    if (in.dtype() == out.dtype())
      launch(type, type);
    else
      launch(TypeTag<float>{}, type);
  });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void gemm_naive(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, Tensor& c) {
  if (c.numel() == 0) return;
  const int64_t m = c.size(0), n = c.size(1), k = a.size(transpose_a ? 0 : 1);
  const auto launch = [&](auto in_type, auto out_type) {
    using In = typename decltype(in_type)::type;
    using Out = typename decltype(out_type)::type;
    gemm_kernel<In, Out><<<blocks_for(c.numel(), c), kThreads, 0, stream_of(c)>>>(
        a.data<In>(), transpose_a ? 1 : k, transpose_a ? m : 1, b.data<In>(), transpose_b ? 1 : n, transpose_b ? k : 1,
        bias.defined() ? bias.data<float>() : nullptr, c.mutable_data<Out>(), m, n, k);
  };
  visit_training(a.dtype(), "matmul", [&](auto type) {
    if (a.dtype() == c.dtype())
      launch(type, type);
    else
      launch(type, TypeTag<float>{});
  });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
