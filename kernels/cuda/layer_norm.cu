// layer_norm: y = (x - mean) inv_std weight + bias over the last axis, and with xhat = (x - mean) inv_std, g = dy
// weight:
//   dx = inv_std (g - mean(g) - xhat mean(g xhat)),   dweight = sum_rows dy xhat,   dbias = sum_rows dy.
// Forward moves x and y once: mean, variance and result are three passes over a row, the later two out of the caches.
// Backward reads dy and x twice more, once along rows for dx and once across them for dweight and dbias.
#include "demi/kernels/layer_norm.h"

#include "demi/kernels/cuda/rows.cuh"
#include "demi/kernels/cuda/strided.cuh"
#include "demi/kernels/reduce.h"

namespace demi::kernels::cuda {
namespace {

// f(column) for the packs of N columns that this lane takes of a row.
template <int N, typename F>
__device__ __forceinline__ void for_packs(int64_t columns, int lane, int lanes, const F& f) {
#pragma unroll 2
  for (int64_t i = lane; i < columns / N; i += lanes) f(i * N);
}
template <int N>
__device__ __forceinline__ float fold(float (&v)[N]) {
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
    for (int k = 0; k < width; ++k) v[k] += v[k + width];
  return v[0];
}
template <int N>
__device__ __forceinline__ void load_or(const float* p, int64_t at, float otherwise, float (&v)[N]) {
  if (p) return load_floats<N>(p + at, v);
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = otherwise;
}

// C is a multiple of N. weight and bias may be null.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const T* x, const float* weight, const float* bias, int64_t rows, int64_t C, float eps, int lanes,
                      T* y, float* means, float* inv_stds) {
  const int groups = kThreads / lanes, lane = threadIdx.x % lanes;
  const float columns = static_cast<float>(C);
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < rows;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t row = base + threadIdx.x / lanes, n = row < rows ? C : 0;
    const T* from = x + row * C;
    float sum[N] = {}, squares[N] = {};
    for_packs<N>(n, lane, lanes, [&](int64_t at) {
      float v[N];
      load_floats<N>(from + at, v);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += v[k];
    });
    const float mean = sum_lanes(fold(sum), lanes) / columns;
    for_packs<N>(n, lane, lanes, [&](int64_t at) {
      float v[N];
      load_floats<N>(from + at, v);
#pragma unroll
      for (int k = 0; k < N; ++k) squares[k] += (v[k] - mean) * (v[k] - mean);
    });
    const float inv_std = 1.0f / sqrtf(sum_lanes(fold(squares), lanes) / columns + eps);
    for_packs<N>(n, lane, lanes, [&](int64_t at) {
      float v[N], w[N], b[N];
      load_floats<N>(from + at, v);
      load_or<N>(weight, at, 1.0f, w);
      load_or<N>(bias, at, 0.0f, b);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = (v[k] - mean) * inv_std * w[k] + b[k];
      store_floats<N>(y + row * C + at, v);
    });
    if (row < rows && lane == 0) {
      means[row] = mean;
      inv_stds[row] = inv_std;
    }
  }
}

template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_dx_kernel(const T* dy, const T* x, const float* weight, const float* means, const float* inv_stds,
                         int64_t rows, int64_t C, int lanes, T* dx) {
  const int groups = kThreads / lanes, lane = threadIdx.x % lanes;
  const float columns = static_cast<float>(C);
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < rows;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t row = base + threadIdx.x / lanes, n = row < rows ? C : 0, start = row * C;
    const float mean = n ? means[row] : 0.0f, inv_std = n ? inv_stds[row] : 0.0f;
    float sum[N] = {}, dot[N] = {};
    for_packs<N>(n, lane, lanes, [&](int64_t at) {
      float g[N], v[N], w[N];
      load_floats<N>(dy + start + at, g);
      load_floats<N>(x + start + at, v);
      load_or<N>(weight, at, 1.0f, w);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sum[k] += g[k] * w[k];
        dot[k] += g[k] * w[k] * ((v[k] - mean) * inv_std);
      }
    });
    const float mean_g = sum_lanes(fold(sum), lanes) / columns, mean_dot = sum_lanes(fold(dot), lanes) / columns;
    for_packs<N>(n, lane, lanes, [&](int64_t at) {
      float g[N], v[N], w[N];
      load_floats<N>(dy + start + at, g);
      load_floats<N>(x + start + at, v);
      load_or<N>(weight, at, 1.0f, w);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = inv_std * (g[k] * w[k] - mean_g - (v[k] - mean) * inv_std * mean_dot);
      store_floats<N>(dx + start + at, v);
    });
  }
}

// v of all lines of a tx x ty block added up, in line 0. All threads of the block must come here together.
template <int N>
__device__ __forceinline__ void sum_lines(float (&v)[N], float (&tile)[N][kThreads], int tx) {
  const int line = threadIdx.x / tx;
  for (int half = kThreads / tx / 2; half > 0; half /= 2) {
    if (line >= half && line < 2 * half) {
#pragma unroll
      for (int k = 0; k < N; ++k) tile[k][threadIdx.x] = v[k];
    }
    __syncthreads();
    if (line < half) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] += tile[k][threadIdx.x + half * tx];
    }
    __syncthreads();
  }
}

// Partial sums over part `item % split.count` of the rows -> dweight, dbias [parts, C]. A block is tx x ty threads: tx
// on neighbouring packs of N columns, ty on different rows.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_parameters_kernel(const T* dy, const T* x, const float* means, const float* inv_stds, int64_t rows,
                                 int64_t C, Split split, int tx, float* dweight, float* dbias) {
  __shared__ float tile[N][kThreads];
  const int ty = kThreads / tx, line = threadIdx.x / tx;
  const int64_t packs = C / N, items = (packs + tx - 1) / tx * split.count;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t part = item % split.count, pack = item / split.count * tx + threadIdx.x % tx, at = pack * N;
    float sum[N] = {}, dot[N] = {};
    if (pack < packs) {
      const int64_t end = min(rows, (part + 1) * split.length);
#pragma unroll 2
      for (int64_t row = part * split.length + line; row < end; row += ty) {
        float g[N], v[N];
        load_floats<N>(dy + row * C + at, g);
        load_floats<N>(x + row * C + at, v);
        const float mean = means[row], inv_std = inv_stds[row];
#pragma unroll
        for (int k = 0; k < N; ++k) {
          sum[k] += g[k];
          dot[k] += g[k] * ((v[k] - mean) * inv_std);
        }
      }
    }
    sum_lines<N>(sum, tile, tx);
    sum_lines<N>(dot, tile, tx);
    if (line == 0 && pack < packs) {
      store_floats<N>(dbias + part * C + at, sum);
      store_floats<N>(dweight + part * C + at, dot);
    }
  }
}

template <int N, typename T>
void run_parameters(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std, Tensor& dweight,
                    Tensor& dbias) {
  const int64_t C = x.size(-1), rows = x.numel() / C;
  const auto [tx, split] = plan_columns(C / N, rows, N, x);
  // Parts are summed below; a single one still goes through the workspace, which is aligned whatever dweight is.
  Tensor weights = partials(split.count * C, x), biases = partials(split.count * C, x);
  const int blocks = blocks_for(ceil_div(C / N, tx) * split.count, x, 1);
  layer_norm_parameters_kernel<N><<<blocks, kThreads, 0, stream_of(x)>>>(
      dy.data<T>(), x.data<T>(), mean.data<float>(), inv_std.data<float>(), rows, C, split, tx,
      weights.mutable_data<float>(), biases.mutable_data<float>());
  DEMI_CUDA_CHECK(cudaGetLastError());
  reduce(ReduceOp::Sum, weights, {1, split.count, C}, 1.0, dweight);
  reduce(ReduceOp::Sum, biases, {1, split.count, C}, 1.0, dbias);
}

const float* floats(const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; }

// Whether rows of C elements may be taken in packs.
template <typename T>
bool in_packs(int64_t C, std::initializer_list<const void*> memory) {
  return C % kPack<T> == 0 && std::all_of(memory.begin(), memory.end(), aligned16);
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y, Tensor& mean,
                Tensor& inv_std) {
  const int64_t C = x.size(-1), rows = x.numel() / C;
  visit_cuda(x.dtype(), "layer_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* from = x.data<T>();
    T* to = y.mutable_data<T>();
    const float *w = floats(weight), *b = floats(bias);
    const bool packs = in_packs<T>(C, {from, to, w, b});
    const int lanes = lanes_for(C, rows, kPack<T>);
    const auto kernel = packs ? layer_norm_kernel<kPack<T>, T> : layer_norm_kernel<1, T>;
    kernel<<<blocks_for_rows(rows, lanes, x), kThreads, 0, stream_of(x)>>>(from, w, b, rows, C, static_cast<float>(eps),
                                                                           lanes, to, mean.mutable_data<float>(),
                                                                           inv_std.mutable_data<float>());
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& inv_std, Tensor& dx, Tensor& dweight, Tensor& dbias) {
  const int64_t C = x.size(-1), rows = x.numel() / C;
  visit_cuda(x.dtype(), "layer_norm_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *gradient = dy.data<T>(), *from = x.data<T>();
    T* to = dx.mutable_data<T>();
    const float* w = floats(weight);
    const bool packs = in_packs<T>(C, {gradient, from, to, w});
    const int lanes = lanes_for(C, rows, kPack<T>);
    const auto kernel = packs ? layer_norm_dx_kernel<kPack<T>, T> : layer_norm_dx_kernel<1, T>;
    kernel<<<blocks_for_rows(rows, lanes, x), kThreads, 0, stream_of(x)>>>(gradient, from, w, mean.data<float>(),
                                                                           inv_std.data<float>(), rows, C, lanes, to);
    DEMI_CUDA_CHECK(cudaGetLastError());
    if (!dweight.defined()) return;
    if (packs)
      run_parameters<kPack<T>, T>(dy, x, mean, inv_std, dweight, dbias);
    else
      run_parameters<1, T>(dy, x, mean, inv_std, dweight, dbias);
  });
}

}  // namespace demi::kernels::cuda
