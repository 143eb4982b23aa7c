// strided_copy: y[i] = x[sum_k i_k stride_k], y in order; broadcast_copy is one with strides 0. Moves elements as bits,
// by their size: each of y is written once, and x is read through the caches.
#include "demi/kernels/cuda/strided.cuh"
#include "demi/kernels/reduce.h"

namespace demi::kernels::cuda {
namespace {

// N elements an item; n counts elements, and what N leaves over (only where the index has rank 1) goes one by one.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    strided_copy_kernel(const T* x, const StridedIndex<1> index, bool repeated, int64_t n, T* y) {
  const int64_t items = n / N;
  DEMI_GRID_STRIDE(i, items) {
    int64_t at[1];
    index.locate(i, at);
    Pack<T, N> pack;
    if (N > 1 && repeated) {  // the innermost axis repeats one element
      const T value = x[at[0]];
#pragma unroll
      for (int j = 0; j < N; ++j) pack.value[j] = value;
    } else {
      pack = *reinterpret_cast<const Pack<T, N>*>(x + at[0]);
    }
    *reinterpret_cast<Pack<T, N>*>(y + i * N) = pack;
  }
  DEMI_GRID_STRIDE(i, n - items * N) y[items * N + i] = x[repeated ? 0 : items * N + i];
}

template <typename T>
void copy_elements(const Tensor& x, const StridedIndex<1>& index, Tensor& y) {
  constexpr int N = kPack<T>;
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(y.mutable_raw());
  const int64_t n = y.numel();
  const bool repeated = index.stride[0][0] == 0;
  if (index.packs(N) && aligned16(to) && (repeated || aligned16(from)))
    strided_copy_kernel<N>
        <<<blocks_for((n + N - 1) / N, x), kThreads, 0, stream_of(x)>>>(from, index.in_packs(N), repeated, n, to);
  else
    strided_copy_kernel<1><<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(from, index, repeated, n, to);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void strided_copy(const Tensor& x, const std::array<int64_t, Shape::kMaxRank>& strides, Tensor& y) {
  if (y.numel() == 0) return;
  const StridedIndex<1> index(y.shape(), {strides});
  switch (size_of(x.dtype())) {
    case 1:
      return copy_elements<uint8_t>(x, index, y);
    case 2:
      return copy_elements<uint16_t>(x, index, y);
    case 4:
      return copy_elements<uint32_t>(x, index, y);
    default:
      return copy_elements<uint64_t>(x, index, y);
  }
}

void broadcast_copy(const Tensor& x, Tensor& y) {
  DEMI_CHECK(x.dtype() != DType::F64, "[broadcast_to] fp64 exists on the CPU only");
  strided_copy(x, broadcast_strides(x.shape(), y.shape()), y);
}

}  // namespace demi::kernels::cuda
