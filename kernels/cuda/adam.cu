// One Adam or AdamW step on a run of flat storage (formulas in kernels/adam.h). Bytes an element: w, m and v are read
// and written in FP32 (24), grad is read (4 or 2), a 16-bit copy of w is written (2).
#include "demi/kernels/adam.h"

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

struct Adam {
  double beta1, beta2;
  float eps, weight_decay;
  bool decoupled;
};

// What all weights of one step share.
struct Factors {
  float lr, inv_scale;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^t)
  float sqrt_correction;  // sqrt(1 - beta2^t)
};

__device__ __forceinline__ void update(float& w, float& m, float& v, float g, const Factors& f, const Adam& adam) {
  if (adam.decoupled)
    w -= f.lr * adam.weight_decay * w;
  else
    g += adam.weight_decay * w;
  m = f.beta1 * m + f.one_minus_beta1 * g;
  v = f.beta2 * v + f.one_minus_beta2 * g * g;
  w -= f.step_size * m / (sqrtf(v) / f.sqrt_correction + adam.eps);
}

// What a step reads and writes, as pointers; copies, `scale`, `skip` and `count` may be null.
template <typename G>
struct Run {
  float *w, *m, *v;
  const G* grad;
  Half* copy_f16;
  BFloat16* copy_bf16;
  const float *lr, *scale;
  const int *skip, *count;
  int64_t n;
};

template <int N, typename G>
__device__ __forceinline__ void update_at(int64_t i, const Run<G>& run, const Factors& factors, const Adam& adam) {
  float w[N], g[N], m[N], v[N];
  load_floats<N>(run.w + i, w);
  load_floats<N>(run.grad + i, g);
  load_floats<N>(run.m + i, m);
  load_floats<N>(run.v + i, v);
#pragma unroll
  for (int j = 0; j < N; ++j) update(w[j], m[j], v[j], g[j] * factors.inv_scale, factors, adam);
  store_floats<N>(run.w + i, w);
  store_floats<N>(run.m + i, m);
  store_floats<N>(run.v + i, v);
  if (run.copy_f16 != nullptr) store_floats<N>(run.copy_f16 + i, w);
  if (run.copy_bf16 != nullptr) store_floats<N>(run.copy_bf16 + i, w);
}

template <int N, typename G>
__global__ void __launch_bounds__(kThreads) adam_kernel(Run<G> run, Adam adam) {
  if (run.skip != nullptr && *run.skip != 0) return;  // an overflow: this step never happened
  __shared__ Factors shared;
  if (threadIdx.x == 0) {  // powers in FP64 are dear, so once a block
    const double t = run.count == nullptr ? 1.0 : static_cast<double>(*run.count) + 1.0, lr = *run.lr;
    shared.lr = *run.lr;
    shared.inv_scale = run.scale == nullptr ? 1.0f : static_cast<float>(1.0 / static_cast<double>(*run.scale));
    shared.beta1 = static_cast<float>(adam.beta1);
    shared.one_minus_beta1 = static_cast<float>(1.0 - adam.beta1);
    shared.beta2 = static_cast<float>(adam.beta2);
    shared.one_minus_beta2 = static_cast<float>(1.0 - adam.beta2);
    shared.step_size = static_cast<float>(lr / (1.0 - pow(adam.beta1, t)));
    shared.sqrt_correction = static_cast<float>(sqrt(1.0 - pow(adam.beta2, t)));
  }
  __syncthreads();
  const Factors factors = shared;
  DEMI_GRID_STRIDE(i, run.n / N) update_at<N>(i * N, run, factors, adam);
  if constexpr (N > 1) {  // the last n % N weights
    DEMI_GRID_STRIDE(i, run.n % N) update_at<1>(run.n - 1 - i, run, factors, adam);
  }
}

}  // namespace

void adam_step(const StepOperands& run, Tensor& m, Tensor& v, const AdamOptions& options) {
  const Adam adam{options.beta1, options.beta2, static_cast<float>(options.eps),
                  static_cast<float>(options.weight_decay), options.decoupled};
  Tensor master = run.master, copy_f16 = run.copy_f16, copy_bf16 = run.copy_bf16;
  visit_cuda(run.grad.dtype(), "adam", [&](auto type) {
    using G = typename decltype(type)::type;
    const Run<G> r{master.mutable_data<float>(),
                   m.mutable_data<float>(),
                   v.mutable_data<float>(),
                   run.grad.data<G>(),
                   copy_f16.defined() ? copy_f16.mutable_data<Half>() : nullptr,
                   copy_bf16.defined() ? copy_bf16.mutable_data<BFloat16>() : nullptr,
                   run.lr.data<float>(),
                   run.scale.defined() ? run.scale.data<float>() : nullptr,
                   run.skip.defined() ? run.skip.data<int>() : nullptr,
                   run.count.defined() ? run.count.data<int>() : nullptr,
                   master.numel()};
    const bool packs = aligned16(r.w) && aligned16(r.m) && aligned16(r.v) && aligned16(r.grad) &&
                       aligned16(r.copy_f16) && aligned16(r.copy_bf16);
    if (packs)
      adam_kernel<4><<<blocks_for((r.n + 3) / 4, master), kThreads, 0, stream_of(master)>>>(r, adam);
    else
      adam_kernel<1><<<blocks_for(r.n, master), kThreads, 0, stream_of(master)>>>(r, adam);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
