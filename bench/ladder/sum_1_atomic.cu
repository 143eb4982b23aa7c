// Sum, step 1: y = the sum of x, one atomic addition an element, all of them to the same four bytes.
//
// Bytes that must move: x once. For 16,777,216 elements 33.6 MB in FP16, 7.8 us at 4.28 TB/s; 67.1 MB in FP32, 15.7 us.
//
// What holds it back: additions to one address follow one another in the L2, about one a cycle: some 10 ms for 16
// million. It is wrong as well: the order of the additions is that of arrival, so the last digits change from run to
// run (NOT DETERMINISTIC, and nowhere in the library for that reason), and a single FP32 sum stands still once its
// terms are below half of its last digit: 20 million ones make 16,777,216.
#include "demi/bench/ladder/sum.cuh"

namespace demi::bench::ladder {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) atomic_kernel(const T* x, int64_t n, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) atomicAdd(y, static_cast<float>(x[i]));
}

}  // namespace

void sum_atomic(const Tensor& x, Tensor& y) {
  check_sum("1_atomic", x, y);
  const cudaStream_t stream = stream_of(x);
  float* to = y.mutable_data<float>();
  DEMI_CUDA_CHECK(cudaMemsetAsync(to, 0, sizeof(float), stream));
  const auto blocks = static_cast<unsigned>((x.numel() + kThreads - 1) / kThreads);
  visit_terms(x, [&](const auto* terms) { atomic_kernel<<<blocks, kThreads, 0, stream>>>(terms, x.numel(), to); });
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
