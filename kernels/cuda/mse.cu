// Mean squared error (formulas in kernels/mse.h). Bytes, in tensors of x's size: 2 for the reduced loss, 3 for the
// gradient; the unreduced loss writes 4 bytes an element more.
#include "demi/kernels/mse.h"

#include "demi/kernels/cuda/elementwise.cuh"
#include "demi/kernels/cuda/last_block.cuh"

namespace demi::kernels::cuda {
namespace {

__device__ unsigned losses_done[kSlots];

template <int N, typename T>
__global__ void __launch_bounds__(kThreads) mse_kernel(const T* __restrict__ x, const T* __restrict__ target, int64_t n,
                                                       double divisor, float* loss, float* partial, int slot) {
  float sums[N] = {};  // one a position in the pack: short chains of additions
  DEMI_GRID_STRIDE(i, n / N) {
    float a[N], b[N];
    load_floats<N>(x + i * N, a);
    load_floats<N>(target + i * N, b);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += (a[j] - b[j]) * (a[j] - b[j]);
  }
  DEMI_GRID_STRIDE(i, n % N) {
    const float d = static_cast<float>(x[n - 1 - i]) - static_cast<float>(target[n - 1 - i]);
    sums[0] += d * d;
  }
  float mine = 0;
  for (float s : sums) mine += s;
  double sum;
  if (grid_sum(mine, partial, &losses_done[slot], sum)) *loss = static_cast<float>(sum / divisor);
}

struct SquaredError {
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = (in[0][j] - in[1][j]) * (in[0][j] - in[1][j]);
  }
};

struct Gradient {  // of a reduced loss: one dy for all
  const float* dy;
  float divisor;
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
    const float g = 2.0f * *dy / divisor;
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = g * (in[0][j] - in[1][j]);
  }
};

struct GradientOfEach {
  template <int N>
  __device__ void operator()(const float (&in)[3][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = 2.0f * in[2][j] * (in[0][j] - in[1][j]);
  }
};

}  // namespace

void mse(const Tensor& x, const Tensor& target, Reduction reduction, Tensor& loss) {
  visit_cuda(x.dtype(), "mse_loss", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *a = x.data<T>(), *b = target.data<T>();
    const int64_t n = x.numel();
    float* out = loss.mutable_data<float>();
    if (reduction == Reduction::None) return map(x, n, SquaredError{}, out, a, b);
    constexpr int N = kPack<T>;
    const int blocks = blocks_for((n + N - 1) / N, x);
    const double divisor = reduction == Reduction::Mean ? static_cast<double>(n) : 1.0;
    Tensor partial = partial_sums(blocks, x);
    float* p = partial.mutable_data<float>();
    if (aligned16(a) && aligned16(b))
      mse_kernel<N><<<blocks, kThreads, 0, stream_of(x)>>>(a, b, n, divisor, out, p, counter_slot(x));
    else
      mse_kernel<1><<<blocks, kThreads, 0, stream_of(x)>>>(a, b, n, divisor, out, p, counter_slot(x));
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void mse_backward(const Tensor& dy, const Tensor& x, const Tensor& target, Reduction reduction, Tensor& dx) {
  visit_cuda(x.dtype(), "mse_loss_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *a = x.data<T>(), *b = target.data<T>();
    const int64_t n = x.numel();
    T* out = dx.mutable_data<T>();
    if (reduction == Reduction::None) return map(x, n, GradientOfEach{}, out, a, b, dy.data<float>());
    const float divisor = reduction == Reduction::Mean ? static_cast<float>(n) : 1.0f;
    map(x, n, Gradient{dy.data<float>(), divisor}, out, a, b);
  });
}

}  // namespace demi::kernels::cuda
