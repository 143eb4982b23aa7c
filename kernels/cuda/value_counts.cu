// Counts of values by magnitude. Bytes: x once. A block counts in shared memory and adds what it found to the totals;
// whole numbers, so that the order of the additions changes nothing.
#include "demi/kernels/value_counts.h"

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) count_values_kernel(const T* x, unsigned long long* total, int64_t n) {
  __shared__ unsigned counts[ValueCounts::kCounters];  // a block sees fewer than 2^32 values
  for (int k = static_cast<int>(threadIdx.x); k < ValueCounts::kCounters; k += kThreads) counts[k] = 0;
  __syncthreads();
  DEMI_GRID_STRIDE(i, n)
  detail::classify(static_cast<float>(x[i]), [&](int counter) { atomicAdd(&counts[counter], 1u); });
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x); k < ValueCounts::kCounters; k += kThreads)
    if (counts[k] != 0) atomicAdd(&total[k], static_cast<unsigned long long>(counts[k]));
}

}  // namespace

void count_values(const Tensor& x, Tensor& counts) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  visit_cuda(x.dtype(), "count_values", [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t n = x.numel();
    count_values_kernel<<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(
        x.data<T>(), reinterpret_cast<unsigned long long*>(counts.mutable_data<int64_t>()), n);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
