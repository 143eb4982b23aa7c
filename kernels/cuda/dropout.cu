// dropout: y[i] = x[i] / (1 - p) where the element's random number is at least p, else 0; its backward with the stored
// mask. Moves 2 elements and one mask byte an element. The stream's number comes from device memory, so that a replayed
// graph draws anew.
#include "demi/kernels/dropout.h"

#include "demi/core/random.h"
#include "demi/kernels/cuda/elementwise.cuh"

namespace demi::kernels::cuda {
namespace {

// 1 / (1 - p), and 0 where nothing is kept.
float gain_of(double p) { return p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0f; }

// A thread takes N elements (a multiple of 4), N / 4 Philox blocks.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* x, int64_t n, bool aligned, float p, float gain, uint64_t seed, const int64_t* step,
                   uint64_t call, T* y, uint8_t* mask) {
  const uint64_t stream = mix(static_cast<uint64_t>(*step), call);
  DEMI_GRID_STRIDE(i, (n + N - 1) / N) {
    const int64_t first = i * N;
    const bool whole = aligned && first + N <= n;
    float v[N];
    Pack<uint8_t, N> kept;
    if (whole) load_floats<N>(x + first, v);
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const Philox random(seed, stream, static_cast<uint64_t>((first + k) / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) kept.value[k + j] = random.uniform(j) >= p;
    }
    if (whole) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = kept.value[k] ? v[k] * gain : 0.0f;
      store_floats<N>(y + first, v);
      *reinterpret_cast<Pack<uint8_t, N>*>(mask + first) = kept;
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (first + k < n) {
          y[first + k] = static_cast<T>(kept.value[k] ? static_cast<float>(x[first + k]) * gain : 0.0f);
          mask[first + k] = kept.value[k];
        }
      }
    }
  }
}

struct Masked {
  float gain;
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = in[1][j] != 0.0f ? in[0][j] * gain : 0.0f;
  }
};

}  // namespace

void dropout(const Tensor& x, double p, uint64_t seed, const Tensor& step, uint64_t call, Tensor& y, Tensor& mask) {
  const int64_t n = x.numel();
  visit_cuda(x.dtype(), "dropout", [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int N = kPack<T>;
    const T* from = x.data<T>();
    T* to = y.mutable_data<T>();
    uint8_t* kept = mask.mutable_data<uint8_t>();
    const bool aligned = aligned16(from) && aligned16(to) && aligned16(kept);
    dropout_kernel<N><<<blocks_for((n + N - 1) / N, x), kThreads, 0, stream_of(x)>>>(
        from, n, aligned, static_cast<float>(p), gain_of(p), seed, step.data<int64_t>(), call, to, kept);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void dropout_backward(const Tensor& dy, const Tensor& mask, double p, Tensor& dx) {
  visit_cuda(dy.dtype(), "dropout_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    map(dy, dy.numel(), Masked{gain_of(p)}, dx.mutable_data<T>(), dy.data<T>(), mask.data<uint8_t>());
  });
}

}  // namespace demi::kernels::cuda
