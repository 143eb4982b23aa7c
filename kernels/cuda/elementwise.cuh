// map: y[i] = f(x0[i], x1[i], ...) in FP32, for tensors of one shape. Each element is read once and written once; a
// thread keeps two packs of 16 bytes of every input in flight.
#pragma once

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {

// N elements a step. Inputs and output may be the same memory: an element is read before it is written, by one thread.
// f(in, out) takes float in[inputs][N] and fills float out[N].
template <int N, typename F, typename Y, typename... X>
__global__ void __launch_bounds__(kThreads) map_kernel(int64_t n, F f, Y* y, const X*... x) {
  constexpr int kInputs = sizeof...(X), kUnroll = 2;
  const int64_t packs = n / N, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (int64_t i = first; i < packs; i += kUnroll * step) {
    float in[kUnroll][kInputs][N], out[N];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < packs) {
        int k = 0;
        (load_floats<N>(x + (i + u * step) * N, in[u][k++]), ...);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < packs) {
        f(in[u], out);
        store_floats<N>(y + (i + u * step) * N, out);
      }
    }
  }
  for (int64_t i = packs * N + first; i < n; i += step) {  // fewer than N elements are left
    float in[kInputs][1], out[1];
    int k = 0;
    (load_floats<1>(x + i, in[k++]), ...);
    f(in, out);
    store_floats<1>(y + i, out);
  }
}

// Packs where all memory is aligned to 16 bytes, else single elements. n > 0.
template <typename F, typename Y, typename... X>
void map(const Tensor& like, int64_t n, const F& f, Y* y, const X*... x) {
  constexpr int N = static_cast<int>(16 / std::max<size_t>(2, std::min({sizeof(Y), sizeof(X)...})));
  if ((aligned16(y) && ... && aligned16(x)))
    map_kernel<N><<<blocks_for((n + N - 1) / N, like), kThreads, 0, stream_of(like)>>>(n, f, y, x...);
  else
    map_kernel<1><<<blocks_for(n, like), kThreads, 0, stream_of(like)>>>(n, f, y, x...);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
