// Convolutions as their definition says, for what cuDNN has no engine for (some groups, dilations, strides, sizes):
//   y[n,p,q,k]   = bias[k] + sum_{r,s,c} x[n, h, w, c] w[k,r,s,c]       h = p stride + r dilation - padding, w likewise
//   dx[n,h,w,c]  = sum_{r,s,k: h reached} dy[n,p,q,k] w[k,r,s,c]
//   dw[k,r,s,c]  = sum_{n,p,q} dy[n,p,q,k] x[n, h, w, c]
// with k and c of one group. 2 N P Q K R S C / groups operations each, in FP32 and a fixed order, rounded once. Nothing
// is tiled: correct for every case and size, far from fast.
#include "demi/kernels/cuda/conv_kernels.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

struct Extents {
  int64_t N, H, W, C, K, R, S, P, Q;
  int64_t group_c, group_k;  // channels of one group
  int64_t stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
};

Extents extents(const Shape& x, const Shape& w, const Shape& y, const Conv2dOptions& o) {
  return {x[0],
          x[1],
          x[2],
          x[3],
          w[0],
          w[1],
          w[2],
          y[1],
          y[2],
          w[3],
          w[0] / o.groups,
          o.stride[0],
          o.stride[1],
          o.padding[0],
          o.padding[1],
          o.dilation[0],
          o.dilation[1]};
}

template <typename T>
__global__ void fprop_kernel(const T* x, const T* w, const float* bias, T* y, Extents e) {
  DEMI_GRID_STRIDE(i, e.N * e.P * e.Q * e.K) {
    const int64_t k = i % e.K, q = i / e.K % e.Q, p = i / (e.K * e.Q) % e.P, n = i / (e.K * e.Q * e.P);
    const int64_t first_c = k / e.group_k * e.group_c;
    float sum = 0.0f;
    for (int64_t r = 0; r < e.R; ++r) {
      const int64_t h = p * e.stride_h + r * e.dilation_h - e.padding_h;
      if (h < 0 || h >= e.H) continue;
      for (int64_t s = 0; s < e.S; ++s) {
        const int64_t v = q * e.stride_w + s * e.dilation_w - e.padding_w;
        if (v < 0 || v >= e.W) continue;
        const T* pixel = x + ((n * e.H + h) * e.W + v) * e.C + first_c;
        const T* taps = w + ((k * e.R + r) * e.S + s) * e.group_c;
        float tap = 0.0f;
        for (int64_t c = 0; c < e.group_c; ++c) tap = fmaf(float(pixel[c]), float(taps[c]), tap);
        sum += tap;
      }
    }
    y[i] = T(bias ? sum + bias[k] : sum);
  }
}

template <typename T>
__global__ void dgrad_kernel(const T* dy, const T* w, T* dx, Extents e) {
  DEMI_GRID_STRIDE(i, e.N * e.H * e.W * e.C) {
    const int64_t c = i % e.C, v = i / e.C % e.W, h = i / (e.C * e.W) % e.H, n = i / (e.C * e.W * e.H);
    const int64_t group = c / e.group_c, first_k = group * e.group_k, c_in_group = c - group * e.group_c;
    const int64_t next_k = e.R * e.S * e.group_c;  // from one filter to the next
    float sum = 0.0f;
    for (int64_t r = 0; r < e.R; ++r) {
      const int64_t above = h + e.padding_h - r * e.dilation_h, p = above / e.stride_h;
      if (above < 0 || above % e.stride_h != 0 || p >= e.P) continue;
      for (int64_t s = 0; s < e.S; ++s) {
        const int64_t left = v + e.padding_w - s * e.dilation_w, q = left / e.stride_w;
        if (left < 0 || left % e.stride_w != 0 || q >= e.Q) continue;
        const T* pixel = dy + ((n * e.P + p) * e.Q + q) * e.K + first_k;
        const T* taps = w + ((first_k * e.R + r) * e.S + s) * e.group_c + c_in_group;
        float tap = 0.0f;
        for (int64_t k = 0; k < e.group_k; ++k) tap = fmaf(float(pixel[k]), float(taps[k * next_k]), tap);
        sum += tap;
      }
    }
    dx[i] = T(sum);
  }
}

// A block computes 32 elements of dw; each of its 8 warps sums every eighth row of dy. Rows are added up with Kahan's
// compensation: there can be millions of them.
constexpr int kTile = 32, kSlices = 8;

template <typename T>
__global__ void wgrad_kernel(const T* dy, const T* x, T* dw, Extents e) {
  __shared__ float partial[kSlices][kTile];
  const int64_t total = e.K * e.R * e.S * e.group_c, rows = e.N * e.P;
  for (int64_t tile = blockIdx.x; tile * kTile < total; tile += gridDim.x) {
    const int64_t i = tile * kTile + threadIdx.x;
    float sum = 0.0f, lost = 0.0f;
    if (i < total) {
      const int64_t c_in_group = i % e.group_c, s = i / e.group_c % e.S, r = i / (e.group_c * e.S) % e.R;
      const int64_t k = i / (e.group_c * e.S * e.R), c = k / e.group_k * e.group_c + c_in_group;
      for (int64_t row = threadIdx.y; row < rows; row += kSlices) {
        const int64_t n = row / e.P, p = row - n * e.P;
        const int64_t h = p * e.stride_h + r * e.dilation_h - e.padding_h;
        if (h < 0 || h >= e.H) continue;
        float line = 0.0f;
        for (int64_t q = 0; q < e.Q; ++q) {
          const int64_t v = q * e.stride_w + s * e.dilation_w - e.padding_w;
          if (v < 0 || v >= e.W) continue;
          line = fmaf(float(dy[(row * e.Q + q) * e.K + k]), float(x[((n * e.H + h) * e.W + v) * e.C + c]), line);
        }
        const float corrected = line - lost, next = sum + corrected;
        lost = isfinite(next) ? (next - sum) - corrected : 0.0f;  // inf - inf would make a NaN of an infinity
        sum = next;
      }
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && i < total) {
      for (int slice = 1; slice < kSlices; ++slice) sum += partial[slice][threadIdx.x];
      dw[i] = T(sum);
    }
    __syncthreads();  // before the next tile overwrites the partial sums
  }
}

}  // namespace

void conv_direct(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, Tensor& y) {
  if (y.numel() == 0) return;
  const Extents e = extents(x.shape(), w.shape(), y.shape(), options);
  visit_training(x.dtype(), "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    fprop_kernel<T><<<blocks_for(y.numel(), y), kThreads, 0, stream_of(y)>>>(
        x.data<T>(), w.data<T>(), bias.defined() ? bias.data<float>() : nullptr, y.mutable_data<T>(), e);
  });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void conv_direct_dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx) {
  if (dx.numel() == 0) return;
  const Extents e = extents(dx.shape(), w.shape(), dy.shape(), options);
  visit_training(dy.dtype(), "conv2d_dgrad", [&](auto type) {
    using T = typename decltype(type)::type;
    dgrad_kernel<T><<<blocks_for(dx.numel(), dx), kThreads, 0, stream_of(dx)>>>(dy.data<T>(), w.data<T>(),
                                                                                dx.mutable_data<T>(), e);
  });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void conv_direct_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw) {
  if (dw.numel() == 0) return;
  const Extents e = extents(x.shape(), dw.shape(), dy.shape(), options);
  const int blocks = blocks_for(dw.numel(), dw, kTile);
  visit_training(dy.dtype(), "conv2d_wgrad", [&](auto type) {
    using T = typename decltype(type)::type;
    wgrad_kernel<T>
        <<<blocks, dim3(kTile, kSlices), 0, stream_of(dw)>>>(dy.data<T>(), x.data<T>(), dw.mutable_data<T>(), e);
  });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
