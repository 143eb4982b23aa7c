// One SGD step on a run of flat storage (formula in kernels/sgd.h):
//   g = grad / scale + weight_decay * w
//   v = momentum * v + (1 - dampening) * g,   but v = g in the first real step
//   w -= lr * (nesterov ? g + momentum * v : v)
// Bytes an element: w and v are read and written in FP32 (16), grad is read (4 or 2), a 16-bit copy of w is written
// (2). FP16 training of 11 M weights moves 20 bytes each, 223 MB, 52 us at 4.3 TB/s: hence all in one pass.
#include "demi/kernels/sgd.h"

#include "demi/kernels/cuda/device.cuh"

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

// What a step reads and writes, as pointers; all but `w`, `grad` and `lr` may be null.
template <typename G>
struct Run {
  float *w, *v;
  const G* grad;
  Half* copy_f16;
  BFloat16* copy_bf16;
  const float *lr, *scale;
  const int *skip, *count;
  int64_t n;
};

// N weights at once, with accesses of up to 16 bytes.
template <int N, bool kMomentum, typename G>
__device__ __forceinline__ void update_at(int64_t i, const Run<G>& run, float lr, float inv_scale, bool first,
                                          const Sgd& sgd) {
  float w[N], g[N], v[N];
  load_floats<N>(run.w + i, w);
  load_floats<N>(run.grad + i, g);
  if constexpr (kMomentum) load_floats<N>(run.v + i, v);
#pragma unroll
  for (int j = 0; j < N; ++j) update(w[j], kMomentum ? &v[j] : nullptr, g[j] * inv_scale, lr, first, sgd);
  store_floats<N>(run.w + i, w);
  if constexpr (kMomentum) store_floats<N>(run.v + i, v);
  if (run.copy_f16 != nullptr) store_floats<N>(run.copy_f16 + i, w);
  if (run.copy_bf16 != nullptr) store_floats<N>(run.copy_bf16 + i, w);
}

template <int N, bool kMomentum, typename G>
__global__ void __launch_bounds__(kThreads) sgd_kernel(Run<G> run, Sgd sgd) {
  if (run.skip != nullptr && *run.skip != 0) return;  // an overflow: this step never happened
  const float lr = *run.lr;
  const float inv_scale = run.scale == nullptr ? 1.0f : static_cast<float>(1.0 / static_cast<double>(*run.scale));
  const bool first = run.count == nullptr || *run.count == 0;
  DEMI_GRID_STRIDE(i, run.n / N) update_at<N, kMomentum>(i * N, run, lr, inv_scale, first, sgd);
  if constexpr (N > 1) {  // the last n % N weights
    DEMI_GRID_STRIDE(i, run.n % N) update_at<1, kMomentum>(run.n - 1 - i, run, lr, inv_scale, first, sgd);
  }
}

template <bool kMomentum, typename G>
void launch(const Tensor& like, const Run<G>& run, const Sgd& sgd) {
  const bool packs = aligned16(run.w) && aligned16(run.v) && aligned16(run.grad) && aligned16(run.copy_f16) &&
                     aligned16(run.copy_bf16);
  if (packs)
    sgd_kernel<4, kMomentum><<<blocks_for((run.n + 3) / 4, like), kThreads, 0, stream_of(like)>>>(run, sgd);
  else
    sgd_kernel<1, kMomentum><<<blocks_for(run.n, like), kThreads, 0, stream_of(like)>>>(run, sgd);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void sgd_step(const StepOperands& run, Tensor& momentum, const SgdOptions& options) {
  const Sgd sgd{static_cast<float>(options.momentum), static_cast<float>(1.0 - options.dampening),
                static_cast<float>(options.weight_decay), options.nesterov};
  Tensor master = run.master, copy_f16 = run.copy_f16, copy_bf16 = run.copy_bf16;
  visit_cuda(run.grad.dtype(), "sgd", [&](auto type) {
    using G = typename decltype(type)::type;
    const Run<G> r{master.mutable_data<float>(),
                   momentum.defined() ? momentum.mutable_data<float>() : nullptr,
                   run.grad.data<G>(),
                   copy_f16.defined() ? copy_f16.mutable_data<Half>() : nullptr,
                   copy_bf16.defined() ? copy_bf16.mutable_data<BFloat16>() : nullptr,
                   run.lr.data<float>(),
                   run.scale.defined() ? run.scale.data<float>() : nullptr,
                   run.skip.defined() ? run.skip.data<int>() : nullptr,
                   run.count.defined() ? run.count.data<int>() : nullptr,
                   master.numel()};
    options.momentum != 0 ? launch<true>(master, r, sgd) : launch<false>(master, r, sgd);
  });
}

}  // namespace demi::kernels::cuda
