// map: y[i] = f(x0[i], x1[i], ...) in FP32, for tensors of one shape. Each element is read once and written once; a
// thread keeps two packs of 16 bytes of every input in flight, and there are as many threads as that takes: blocks that
// come and go keep the memory busier than blocks that stay and loop, all of which end at once.
#pragma once

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {

constexpr int kMapPacks = 2;  // a thread

// N elements a pack. Inputs and output may be the same memory: an element is read before it is written, by one thread.
// f(in, out) takes float in[inputs][N] and fills float out[N].
template <int N, typename F, typename Y, typename... X>
__global__ void __launch_bounds__(kThreads) map_kernel(int64_t n, F f, Y* y, const X*... x) {
  constexpr int kInputs = sizeof...(X);
  const int64_t packs = n / N, first = blockIdx.x * int64_t{kMapPacks * kThreads} + threadIdx.x;
  float in[kMapPacks][kInputs][N], out[N];
#pragma unroll
  for (int u = 0; u < kMapPacks; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < packs) {
      int k = 0;
      (load_floats<N>(x + i * N, in[u][k++]), ...);
    }
  }
#pragma unroll
  for (int u = 0; u < kMapPacks; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < packs) {
      f(in[u], out);
      store_floats<N>(y + i * N, out);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < n - packs * N) {  // fewer than N elements are left
    const int64_t i = packs * N + threadIdx.x;
    float one[kInputs][1], result[1];
    int k = 0;
    (load_floats<1>(x + i, one[k++]), ...);
    f(one, result);
    store_floats<1>(y + i, result);
  }
}

// Packs where all memory is aligned to 16 bytes, else single elements. A pack is what one store writes: neighbours then
// write without gaps, whatever the inputs' dtypes. n > 0.
template <typename F, typename Y, typename... X>
void map(const Tensor& like, int64_t n, const F& f, Y* y, const X*... x) {
  constexpr int N = static_cast<int>(16 / std::max<size_t>(2, sizeof(Y)));
  const auto blocks = [](int64_t packs) {
    return static_cast<unsigned>((packs + kMapPacks * kThreads - 1) / (kMapPacks * kThreads));
  };
  if ((aligned16(y) && ... && aligned16(x)))
    map_kernel<N><<<blocks((n + N - 1) / N), kThreads, 0, stream_of(like)>>>(n, f, y, x...);
  else
    map_kernel<1><<<blocks(n), kThreads, 0, stream_of(like)>>>(n, f, y, x...);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
