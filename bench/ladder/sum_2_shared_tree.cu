// Sum, step 2: y = the sum of x. A block adds 256 elements in shared memory, halves on to halves, and writes one
// number; further launches add up those: 16,777,216 -> 65,536 -> 256 -> 1.
//
// Bytes that must move: x once, 7.8 us in FP16 and 15.7 us in FP32 at 4.28 TB/s for 16,777,216 elements. This step
// writes and reads 0.8 % or 1.6 % more for its partial sums. Adds over step 1: no thread waits for another block's
// addition, the order is fixed, so results repeat bit by bit, and pairs of sums of equal length lose few digits. What
// holds it back: nine barriers for one element a thread. Most threads idle in most rounds, and the memory waits.
#include "demi/bench/ladder/sum.cuh"

namespace demi::bench::ladder {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) shared_tree_kernel(const T* x, int64_t n, float* partial) {
  __shared__ float sum[kThreads];
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  sum[threadIdx.x] = i < n ? static_cast<float>(x[i]) : 0.0f;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sum[threadIdx.x] += sum[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

}  // namespace

void sum_shared_tree(const Tensor& x, Tensor& y) {
  check_sum("2_shared_tree", x, y);
  sum_in_passes(x, y, [](const auto* from, int64_t n, float* to, int64_t blocks, cudaStream_t stream) {
    shared_tree_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(from, n, to);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::bench::ladder
