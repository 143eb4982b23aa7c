// The finite check, unscaling, squares and clipping of gradients. Bytes an element of b bytes: check_finite and
// add_squares read b; unscale reads b and writes 4; clip_value reads and writes b.
#include "demi/kernels/gradient.h"

#include <cfloat>

#include "demi/kernels/cuda/elementwise.cuh"
#include "demi/kernels/cuda/last_block.cuh"

namespace demi::kernels::cuda {
namespace {

__device__ unsigned squares_done[kSlots];

__device__ __forceinline__ bool finite(float v) { return fabsf(v) <= FLT_MAX; }  // false for NaN

// f(i, N) over [0, n): N elements at a time, the rest one by one.
template <int N, typename F>
__device__ __forceinline__ void for_packs(int64_t n, F&& f) {
  DEMI_GRID_STRIDE(i, n / N) f(i * N, std::integral_constant<int, N>{});
  if constexpr (N > 1) {
    DEMI_GRID_STRIDE(i, n % N) f(n - 1 - i, std::integral_constant<int, 1>{});
  }
}

template <int N, typename T>
__global__ void __launch_bounds__(kThreads) check_finite_kernel(const T* x, int* found, int64_t n) {
  bool bad = false;
  for_packs<N>(n, [&](int64_t i, auto width) {
    float v[width];
    load_floats<width>(x + i, v);
    for (float one : v) bad = bad || !finite(one);
  });
  if (bad) *found = 1;  // every writer writes the same
}

template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    unscale_kernel(const T* x, const float* scale, int* found, float* y, int64_t n) {
  const float inverse = static_cast<float>(1.0 / static_cast<double>(*scale));
  bool bad = false;
  for_packs<N>(n, [&](int64_t i, auto width) {
    float v[width];
    load_floats<width>(x + i, v);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      bad = bad || !finite(v[j]);
      if (inverse != 1.0f) v[j] *= inverse;
    }
    store_floats<width>(y + i, v);
  });
  if (bad) *found = 1;
}

template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    add_squares_kernel(const T* x, float* total, int64_t n, float* partial, int slot) {
  float sums[N] = {};  // one a position in the pack: short chains of additions
  for_packs<N>(n, [&](int64_t i, auto width) {
    float v[width];
    load_floats<width>(x + i, v);
#pragma unroll
    for (int j = 0; j < width; ++j) sums[j] += v[j] * v[j];
  });
  float mine = 0;
  for (float s : sums) mine += s;
  double sum;
  if (grid_sum(mine, partial, &squares_done[slot], sum)) *total = static_cast<float>(*total + sum);
}

__global__ void norm_kernel(const float* total, double max_norm, float* norm, float* coefficient) {
  const float length = sqrtf(*total);
  *norm = length;
  *coefficient = finite(length) ? fminf(1.0f, static_cast<float>(max_norm) / (length + 1e-6f)) : 1.0f;
}

struct ClipValue {
  float limit;
  template <int N>
  __device__ void operator()(const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float v = in[0][j];
      out[j] = v > limit ? limit : v < -limit ? -limit : v;
    }
  }
};

}  // namespace

void check_finite(const Tensor& x, Tensor& found) {
  visit_cuda(x.dtype(), "check_finite", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    const int64_t n = x.numel();
    int* flag = found.mutable_data<int>();
    constexpr int N = kPack<T>;
    if (aligned16(in))
      check_finite_kernel<N><<<blocks_for((n + N - 1) / N, x), kThreads, 0, stream_of(x)>>>(in, flag, n);
    else
      check_finite_kernel<1><<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(in, flag, n);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void unscale(const Tensor& x, const Tensor& scale, Tensor& found, Tensor& y) {
  visit_cuda(x.dtype(), "unscale", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    const int64_t n = x.numel();
    float* out = y.mutable_data<float>();
    int* flag = found.mutable_data<int>();
    const float* s = scale.data<float>();
    constexpr int N = kPack<T>;
    if (aligned16(in) && aligned16(out))
      unscale_kernel<N><<<blocks_for((n + N - 1) / N, x), kThreads, 0, stream_of(x)>>>(in, s, flag, out, n);
    else
      unscale_kernel<1><<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(in, s, flag, out, n);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void add_squares(const Tensor& x, Tensor& total) {
  visit_cuda(x.dtype(), "add_squares", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    const int64_t n = x.numel();
    float* sum = total.mutable_data<float>();
    constexpr int N = kPack<T>;
    const int blocks = blocks_for((n + N - 1) / N, x);
    Tensor partial = partial_sums(blocks, x);
    float* p = partial.mutable_data<float>();
    if (aligned16(in))
      add_squares_kernel<N><<<blocks, kThreads, 0, stream_of(x)>>>(in, sum, n, p, counter_slot(x));
    else
      add_squares_kernel<1><<<blocks, kThreads, 0, stream_of(x)>>>(in, sum, n, p, counter_slot(x));
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void norm_and_coefficient(const Tensor& total, double max_norm, Tensor& norm, Tensor& coefficient) {
  norm_kernel<<<1, 1, 0, stream_of(total)>>>(total.data<float>(), max_norm, norm.mutable_data<float>(),
                                             coefficient.mutable_data<float>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void clip_value(Tensor& x, double limit) {
  visit_cuda(x.dtype(), "clip_value", [&](auto type) {
    using T = typename decltype(type)::type;
    T* data = x.mutable_data<T>();
    map(x, x.numel(), ClipValue{static_cast<float>(limit)}, data, static_cast<const T*>(data));
  });
}

}  // namespace demi::kernels::cuda
