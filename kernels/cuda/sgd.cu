// One SGD step on a run of flat storage (formula in kernels/sgd.h):
//   g = grad / scale + weight_decay * w
//   v = momentum * v + (1 - dampening) * g,   but v = g in the first real step
//   w -= lr * (nesterov ? g + momentum * v : v)
// Bytes an element: w and v are read and written in FP32 (16), grad is read (4 or 2), a 16-bit copy of w is written
// (2). FP16 training of 11 M weights moves 20 bytes each, 223 MB, 52 us at 4.3 TB/s: hence all in one pass.
#include "demi/kernels/sgd.h"

#include "demi/kernels/cuda/step.cuh"

namespace demi::kernels::cuda {
namespace {

struct Sgd {
  float momentum, one_minus_dampening, weight_decay;
  bool nesterov;
};

// The step for one weight. `v` is null when there is no momentum. Which products are rounded by themselves is said, not
// left to the compiler: as PyTorch does it, which gives its weights bit for bit.
__device__ __forceinline__ void update(float& w, float* v, float g, float lr, bool first, const Sgd& sgd) {
  g = __fmaf_rn(sgd.weight_decay, w, g);
  if (v != nullptr) {
    *v = first ? g : __fmaf_rn(sgd.one_minus_dampening, g, __fmul_rn(sgd.momentum, *v));
    g = sgd.nesterov ? __fmaf_rn(sgd.momentum, *v, g) : *v;
  }
  w = __fmaf_rn(-lr, g, w);
}

// N weights at once, with accesses of up to 16 bytes. The velocity v is null when there is no momentum.
template <int N, bool kMomentum, typename G>
__device__ __forceinline__ void update_at(int64_t i, const Run<G>& run, float* velocity, float lr, float inv_scale,
                                          bool first, const Sgd& sgd) {
  float w[N], g[N], v[N];
  load_floats<N>(run.w + i, w);
  load_floats<N>(run.grad + i, g);
  if constexpr (kMomentum) load_floats<N>(velocity + i, v);
#pragma unroll
  for (int j = 0; j < N; ++j) update(w[j], kMomentum ? &v[j] : nullptr, g[j] * inv_scale, lr, first, sgd);
  run.store(i, w);
  if constexpr (kMomentum) store_floats<N>(velocity + i, v);
}

template <int N, bool kMomentum, typename G>
__global__ void __launch_bounds__(kThreads) sgd_kernel(Run<G> run, float* velocity, Sgd sgd) {
  if (run.skipped()) return;
  const float lr = *run.lr, inv_scale = run.inv_scale();
  const bool first = run.steps_before() == 0;
  for_weights<N>(
      run.n, [&](auto width, int64_t i) { update_at<width, kMomentum>(i, run, velocity, lr, inv_scale, first, sgd); });
}

template <bool kMomentum, typename G>
void launch(const Tensor& like, const Run<G>& run, float* velocity, const Sgd& sgd) {
  if (run.aligned() && aligned16(velocity))
    sgd_kernel<4, kMomentum><<<blocks_for((run.n + 3) / 4, like), kThreads, 0, stream_of(like)>>>(run, velocity, sgd);
  else
    sgd_kernel<1, kMomentum><<<blocks_for(run.n, like), kThreads, 0, stream_of(like)>>>(run, velocity, sgd);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void sgd_step(const StepOperands& operands, Tensor& momentum, const SgdOptions& options) {
  const Sgd sgd{static_cast<float>(options.momentum), static_cast<float>(1.0 - options.dampening),
                static_cast<float>(options.weight_decay), options.nesterov};
  visit_cuda(operands.grad.dtype(), "sgd", [&](auto type) {
    const auto run = run_of<typename decltype(type)::type>(operands);
    if (options.momentum != 0)
      launch<true>(operands.master, run, momentum.mutable_data<float>(), sgd);
    else
      launch<false>(operands.master, run, nullptr, sgd);
  });
}

}  // namespace demi::kernels::cuda
