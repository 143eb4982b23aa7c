// One Adam or AdamW step on a run of flat storage (formulas in kernels/adam.h). Bytes an element: w, m and v are read
// and written in FP32 (24), grad is read (4 or 2), a 16-bit copy of w is written (2).
#include "demi/kernels/adam.h"

#include "demi/kernels/cuda/step.cuh"

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

template <int N, typename G>
__device__ __forceinline__ void update_at(int64_t i, const Run<G>& run, float* first, float* second,
                                          const Factors& factors, const Adam& adam) {
  float w[N], g[N], m[N], v[N];
  load_floats<N>(run.w + i, w);
  load_floats<N>(run.grad + i, g);
  load_floats<N>(first + i, m);
  load_floats<N>(second + i, v);
#pragma unroll
  for (int j = 0; j < N; ++j) update(w[j], m[j], v[j], g[j] * factors.inv_scale, factors, adam);
  run.store(i, w);
  store_floats<N>(first + i, m);
  store_floats<N>(second + i, v);
}

// first, second: the moments m and v.
template <int N, typename G>
__global__ void __launch_bounds__(kThreads) adam_kernel(Run<G> run, float* first, float* second, Adam adam) {
  if (run.skipped()) return;
  __shared__ Factors shared;
  if (threadIdx.x == 0) {  // powers in FP64 are dear, so once a block
    const double t = run.steps_before() + 1.0, lr = *run.lr;
    shared.lr = *run.lr;
    shared.inv_scale = run.inv_scale();
    shared.beta1 = static_cast<float>(adam.beta1);
    shared.one_minus_beta1 = static_cast<float>(1.0 - adam.beta1);
    shared.beta2 = static_cast<float>(adam.beta2);
    shared.one_minus_beta2 = static_cast<float>(1.0 - adam.beta2);
    shared.step_size = static_cast<float>(lr / (1.0 - pow(adam.beta1, t)));
    shared.sqrt_correction = static_cast<float>(sqrt(1.0 - pow(adam.beta2, t)));
  }
  __syncthreads();
  const Factors factors = shared;
  for_weights<N>(run.n, [&](auto width, int64_t i) { update_at<width>(i, run, first, second, factors, adam); });
}

}  // namespace

void adam_step(const StepOperands& operands, Tensor& m, Tensor& v, const AdamOptions& options) {
  const Adam adam{options.beta1, options.beta2, static_cast<float>(options.eps),
                  static_cast<float>(options.weight_decay), options.decoupled};
  visit_cuda(operands.grad.dtype(), "adam", [&](auto type) {
    const auto run = run_of<typename decltype(type)::type>(operands);
    float *first = m.mutable_data<float>(), *second = v.mutable_data<float>();
    const cudaStream_t stream = stream_of(operands.master);
    if (run.aligned() && aligned16(first) && aligned16(second))
      adam_kernel<4><<<blocks_for((run.n + 3) / 4, operands.master), kThreads, 0, stream>>>(run, first, second, adam);
    else
      adam_kernel<1><<<blocks_for(run.n, operands.master), kThreads, 0, stream>>>(run, first, second, adam);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
