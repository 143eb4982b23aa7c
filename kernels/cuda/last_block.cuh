// How one launch finishes a reduction over all its blocks: each block writes its partial result and counts itself; the
// last one to arrive reads all of them in their fixed order, so results do not depend on which block that was.
#pragma once

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {

// Counters live in __device__ arrays, one row a slot, zero before and after every kernel. Host threads have streams of
// their own, whose kernels may run at once: each stream has a slot.
constexpr int kSlots = 64;
inline int counter_slot(const Tensor& x) {
  const int slot = Context::get(x.device()).number();
  DEMI_CHECK(slot < kSlots, "at most {} threads at once compute on {}", kSlots, x.device());
  return slot;
}

// True in every thread of the block that is the last of `blocks` to call this; it sees what the others wrote before
// (to be read with __ldcg). The counter is back at 0 then. Blocks are one-dimensional.
__device__ __forceinline__ bool last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {  // its fences count for the whole block, since the barriers order the block around it
    __threadfence();
    last = atomicInc(counter, blocks - 1) == blocks - 1;  // wraps to 0 by itself
    __threadfence();
  }
  __syncthreads();
  return last;
}

__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}

// The sum of one float a thread over the whole grid of kThreads-wide blocks: blocks in FP32, then all blocks in FP64.
// True in one thread only, which gets the sum; partial holds gridDim.x floats.
__device__ __forceinline__ bool grid_sum(float v, float* partial, unsigned* counter, double& sum) {
  __shared__ double warp[kThreads / 32];
  v = block_sum(v);
  if (threadIdx.x == 0) partial[blockIdx.x] = v;
  if (!last_block(counter, gridDim.x)) return false;
  double total = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) total += __ldcg(partial + i);
  total = warp_sum(total);
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0) return false;
  sum = 0;
  for (double w : warp) sum += w;
  return true;
}

// The floats that grid_sum() needs for this many blocks.
inline Tensor partial_sums(int blocks, const Tensor& x) {
  const memory::Scope scope(memory::Category::Workspace);
  return Tensor::empty({blocks}, DType::F32, x.device());
}

}  // namespace demi::kernels::cuda
