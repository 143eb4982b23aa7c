// binary: y = a op b with broadcasting, and the gradient of maximum. One operation an element; y is written once, and
// of the operands each byte comes from memory once: what broadcasting repeats is in the caches. Operands of one shape
// need no strides; one kernel serves every broadcast: a scalar comes down to one axis, a bias [C] over [..., C] to two.
#include "demi/kernels/binary.h"

#include "demi/kernels/cuda/elementwise.cuh"
#include "demi/kernels/cuda/strided.cuh"

namespace demi::kernels::cuda {
namespace {

// N operand elements, or one of them N times where the innermost axis repeats it.
template <int N, typename T>
__device__ __forceinline__ void load_operand(const T* p, bool repeated, float (&v)[N]) {
  if (N > 1 && repeated) {
    const float value = static_cast<float>(*p);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = value;
  } else {
    load_floats<N>(p, v);
  }
}

template <int N, typename F>
__device__ __forceinline__ void each(const float (&a)[N], const float (&b)[N], float (&y)[N], F f) {
#pragma unroll
  for (int j = 0; j < N; ++j) y[j] = f(a[j], b[j]);
}

template <int N>
__device__ __forceinline__ void combine(BinaryOp op, const float (&a)[N], const float (&b)[N], float (&y)[N]) {
  switch (op) {
    case BinaryOp::Add:
      return each(a, b, y, [](float u, float v) { return u + v; });
    case BinaryOp::Sub:
      return each(a, b, y, [](float u, float v) { return u - v; });
    case BinaryOp::Mul:
      return each(a, b, y, [](float u, float v) { return u * v; });
    case BinaryOp::Div:
      return each(a, b, y, [](float u, float v) { return u / v; });
    case BinaryOp::Maximum:
      return each(a, b, y, [](float u, float v) { return u != u || u > v ? u : v; });  // a NaN of b is never below
  }
}

struct Combine {
  BinaryOp op;
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
    combine<N>(op, in[0], in[1], out);
  }
};

struct Repeated {
  bool a, b;
};

// n counts elements; what N leaves over (only where the index has rank 1) goes one by one.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    binary_kernel(BinaryOp op, const T* a, const T* b, const StridedIndex<2> index, Repeated repeated, int64_t n,
                  T* y) {
  constexpr int kUnroll = 2;
  const int64_t items = n / N, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (int64_t i = first; i < items; i += kUnroll * step) {
    float u[kUnroll][N], v[kUnroll][N], out[N];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (i + k * step < items) {
        int64_t at[2];
        index.locate(i + k * step, at);
        load_operand<N>(a + at[0], repeated.a, u[k]);
        load_operand<N>(b + at[1], repeated.b, v[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (i + k * step < items) {
        combine<N>(op, u[k], v[k], out);
        store_floats<N>(y + (i + k * step) * N, out);
      }
    }
  }
  for (int64_t i = items * N + first; i < n; i += step) {
    float u[1], v[1], out[1];
    load_floats<1>(a + (repeated.a ? 0 : i), u);
    load_floats<1>(b + (repeated.b ? 0 : i), v);
    combine<1>(op, u, v, out);
    store_floats<1>(y + i, out);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    maximum_backward_kernel(const T* dy, const T* a, const T* b, const StridedIndex<2> index, int64_t n, T* da) {
  DEMI_GRID_STRIDE(i, n) {
    int64_t at[2];
    index.locate(i, at);
    const float g = static_cast<float>(dy[i]), u = static_cast<float>(a[at[0]]), v = static_cast<float>(b[at[1]]);
    da[i] = static_cast<T>(u < v ? 0.0f : u == v ? 0.5f * g : g);
  }
}

StridedIndex<2> index_of(const Tensor& a, const Tensor& b, const Shape& shape) {
  return StridedIndex<2>(shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape)});
}

}  // namespace

void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  const int64_t n = y.numel();
  visit_cuda(a.dtype(), name_of(op), [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int N = kPack<T>;
    const T *pa = a.data<T>(), *pb = b.data<T>();
    T* py = y.mutable_data<T>();
    if (a.shape() == b.shape()) return map(y, n, Combine{op}, py, pa, pb);
    const StridedIndex<2> index = index_of(a, b, y.shape());
    const Repeated repeated{index.stride[0][0] == 0, index.stride[1][0] == 0};
    if (index.packs(N) && aligned16(py) && (repeated.a || aligned16(pa)) && (repeated.b || aligned16(pb)))
      binary_kernel<N><<<blocks_for((n + N - 1) / N, y), kThreads, 0, stream_of(y)>>>(op, pa, pb, index.in_packs(N),
                                                                                      repeated, n, py);
    else
      binary_kernel<1><<<blocks_for(n, y), kThreads, 0, stream_of(y)>>>(op, pa, pb, index, repeated, n, py);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

void maximum_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Tensor& da) {
  const StridedIndex<2> index = index_of(a, b, dy.shape());
  const int64_t n = dy.numel();
  visit_cuda(dy.dtype(), "maximum_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    maximum_backward_kernel<<<blocks_for(n, dy), kThreads, 0, stream_of(dy)>>>(dy.data<T>(), a.data<T>(), b.data<T>(),
                                                                               index, n, da.mutable_data<T>());
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
