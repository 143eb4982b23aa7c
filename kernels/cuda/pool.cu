// Max and average pooling over NHWC images. A thread makes one 16-byte pack of channels of one output pixel (of one
// input pixel backward, gathering from the windows that hold it, so that nothing is added atomically). Bytes: every
// tensor once; windows that overlap are read from the caches. Max pooling's index costs 4 bytes an output on top.
#include "demi/kernels/pool.h"

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

struct Range {
  int64_t begin, end;
};

// One axis of the pooling: extents of input and output, and the window.
struct Axis {
  int64_t in, out, kernel, stride, padding;

  __device__ Range window(int64_t at) const {  // the inputs of output `at`, padding left out
    const int64_t start = at * stride - padding;
    return {max(start, int64_t{0}), min(start + kernel, in)};
  }
  __device__ Range covering(int64_t at) const {  // the outputs whose windows hold input `at`
    const int64_t last = at + padding, first = last - kernel + 1;
    return {first > 0 ? (first + stride - 1) / stride : 0, min(last / stride + 1, out)};
  }
};

struct Pooling {
  Axis h, w;
  int64_t images, channels;
  bool count_include_pad;

  __device__ float divisor(const Range& rows, const Range& columns) const {
    if (count_include_pad) return static_cast<float>(h.kernel * w.kernel);
    return static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
  }
};

Pooling pooling_of(const Tensor& x, const Tensor& y, const Pool2dOptions& o) {
  return {{x.size(1), y.size(1), o.kernel[0], o.stride[0], o.padding[0]},
          {x.size(2), y.size(2), o.kernel[1], o.stride[1], o.padding[1]},
          x.size(0),
          x.size(3),
          o.count_include_pad};
}

// Where pack i of an image tensor [images, rows, columns, channels] lies.
struct Place {
  int64_t image, row, column, channel;
  __device__ Place(int64_t i, int64_t rows, int64_t columns, int64_t packs, int pack) {
    channel = i % packs * pack;
    i /= packs;
    column = i % columns;
    i /= columns;
    row = i % rows;
    image = i / rows;
  }
};

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, Pooling p, int64_t n) {
  DEMI_GRID_STRIDE(i, n) {
    const Place at(i, p.h.out, p.w.out, p.channels / V, V);
    const Range rows = p.h.window(at.row), columns = p.w.window(at.column);
    float best[V];
    int taken[V];
    for (int j = 0; j < V; ++j) {
      best[j] = -INFINITY;
      taken[j] = static_cast<int>(rows.begin * p.w.in + columns.begin);  // the one taken where all are -infinity
    }
    for (int64_t h = rows.begin; h < rows.end; ++h)
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        float v[V];
        load_floats<V>(x + ((at.image * p.h.in + h) * p.w.in + w) * p.channels + at.channel, v);
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (!(v[j] <= best[j]) && best[j] == best[j]) {  // larger, or the first NaN
            best[j] = v[j];
            taken[j] = static_cast<int>(h * p.w.in + w);
          }
      }
    store_floats<V>(y + i * V, best);
#pragma unroll
    for (int j = 0; j < V; ++j) index[i * V + j] = taken[j];
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(const T* __restrict__ dy, const int* __restrict__ index, T* __restrict__ dx, Pooling p,
                             int64_t n) {
  DEMI_GRID_STRIDE(i, n) {
    const Place at(i, p.h.in, p.w.in, p.channels / V, V);
    const Range rows = p.h.covering(at.row), columns = p.w.covering(at.column);
    const int here = static_cast<int>(at.row * p.w.in + at.column);
    float sum[V] = {};
    for (int64_t h = rows.begin; h < rows.end; ++h)
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const int64_t from = ((at.image * p.h.out + h) * p.w.out + w) * p.channels + at.channel;
        float g[V];
        load_floats<V>(dy + from, g);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += index[from + j] == here ? g[j] : 0.0f;
      }
    store_floats<V>(dx + i * V, sum);
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    avg_pool_kernel(const T* __restrict__ x, T* __restrict__ y, Pooling p, int64_t n) {
  DEMI_GRID_STRIDE(i, n) {
    const Place at(i, p.h.out, p.w.out, p.channels / V, V);
    const Range rows = p.h.window(at.row), columns = p.w.window(at.column);
    const float divisor = p.divisor(rows, columns);
    float sum[V] = {};
    for (int64_t h = rows.begin; h < rows.end; ++h)
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        float v[V];
        load_floats<V>(x + ((at.image * p.h.in + h) * p.w.in + w) * p.channels + at.channel, v);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += v[j];
      }
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] /= divisor;
    store_floats<V>(y + i * V, sum);
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    avg_pool_backward_kernel(const T* __restrict__ dy, T* __restrict__ dx, Pooling p, int64_t n) {
  DEMI_GRID_STRIDE(i, n) {
    const Place at(i, p.h.in, p.w.in, p.channels / V, V);
    const Range rows = p.h.covering(at.row), columns = p.w.covering(at.column);
    float sum[V] = {};
    for (int64_t h = rows.begin; h < rows.end; ++h)
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const float divisor = p.divisor(p.h.window(h), p.w.window(w));
        float g[V];
        load_floats<V>(dy + ((at.image * p.h.out + h) * p.w.out + w) * p.channels + at.channel, g);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += g[j] / divisor;
      }
    store_floats<V>(dx + i * V, sum);
  }
}

// f(V) with V as a constant: packs where channels and addresses allow them, else single elements.
template <typename T, typename F>
void with_pack(int64_t channels, const T* a, const T* b, const F& f) {
  if (channels % kPack<T> == 0 && aligned16(a) && aligned16(b))
    f(std::integral_constant<int, kPack<T>>{});
  else
    f(std::integral_constant<int, 1>{});
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void max_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y, Tensor& index) {
  const Pooling p = pooling_of(x, y, options);
  visit_cuda(x.dtype(), "max_pool2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    with_pack(p.channels, in, out, [&](auto v) {
      const int64_t n = y.numel() / v;
      max_pool_kernel<T, v><<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(in, out, index.mutable_data<int>(), p, n);
    });
  });
}

void max_pool2d_backward(const Tensor& dy, const Tensor& index, const Pool2dOptions& options, Tensor& dx) {
  const Pooling p = pooling_of(dx, dy, options);
  visit_cuda(dy.dtype(), "max_pool2d_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = dy.data<T>();
    T* out = dx.mutable_data<T>();
    with_pack(p.channels, in, out, [&](auto v) {
      const int64_t n = dx.numel() / v;
      max_pool_backward_kernel<T, v>
          <<<blocks_for(n, dy), kThreads, 0, stream_of(dy)>>>(in, index.data<int>(), out, p, n);
    });
  });
}

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y) {
  const Pooling p = pooling_of(x, y, options);
  visit_cuda(x.dtype(), "avg_pool2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    with_pack(p.channels, in, out, [&](auto v) {
      const int64_t n = y.numel() / v;
      avg_pool_kernel<T, v><<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(in, out, p, n);
    });
  });
}

void avg_pool2d_backward(const Tensor& dy, const Pool2dOptions& options, Tensor& dx) {
  const Pooling p = pooling_of(dx, dy, options);
  visit_cuda(dy.dtype(), "avg_pool2d_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = dy.data<T>();
    T* out = dx.mutable_data<T>();
    with_pack(p.channels, in, out, [&](auto v) {
      const int64_t n = dx.numel() / v;
      avg_pool_backward_kernel<T, v><<<blocks_for(n, dy), kThreads, 0, stream_of(dy)>>>(in, out, p, n);
    });
  });
}

}  // namespace demi::kernels::cuda
