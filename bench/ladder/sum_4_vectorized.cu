// Sum, step 4: y = the sum of x. No more blocks than the card runs at once; their threads walk over x in 16-byte loads
// (thread_sum() in sum.cuh), and one more launch of a single block adds up what the blocks have.
//
// Bytes that must move: x once, 7.8 us in FP16 and 15.7 us in FP32 at 4.28 TB/s for 16,777,216 elements.
// Adds over step 3: memory with a latency of some 700 ns gives 4.28 TB/s only while about 3 MB are under way, 23 KB a
// multiprocessor. Four loads of 16 bytes in each of 1,024 threads are 64 KB. A thread adds in registers, where an
// addition costs one instruction, and the tree over a block runs once instead of once for 256 elements.
// What holds it back: the second launch waits until the first has drained, for a sum of some hundred numbers.
#include "demi/bench/ladder/sum.cuh"

namespace demi::bench::ladder {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    vectorized_kernel(const T* x, int64_t n, float* partial) {
  const float sum = block_sum(thread_sum(x, n));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace

void sum_vectorized(const Tensor& x, Tensor& y) {
  check_sum("4_vectorized", x, y, 16 / static_cast<int64_t>(size_of(x.dtype())));
  const cudaStream_t stream = stream_of(x);
  const int blocks = sum_blocks(x);
  Tensor partial = partial_sums(blocks, x);
  float* sums = partial.mutable_data<float>();
  visit_terms(x,
              [&](const auto* terms) { vectorized_kernel<<<blocks, kThreads, 0, stream>>>(terms, x.numel(), sums); });
  DEMI_CUDA_CHECK(cudaGetLastError());
  vectorized_kernel<<<1, kThreads, 0, stream>>>(partial.data<float>(), blocks, y.mutable_data<float>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
