// What every kernel file shares: the stream, launch sizes, 16-byte loads, block and warp sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "demi/core/cuda/context.h"
#include "demi/core/dtype.h"
#include "demi/core/tensor.h"

namespace demi::kernels::cuda {

using demi::cuda::Context;
using demi::cuda::error_word;
using demi::cuda::ErrorWord;
using demi::cuda::report_error;

inline cudaStream_t stream_of(const Tensor& x) { return Context::get(x.device()).stream(); }

constexpr int kThreads = 256;

// Blocks for a grid-stride loop over n items: enough to fill the card several times, never more than the items need.
inline int blocks_for(int64_t n, const Tensor& x, int threads = kThreads) {
  const int64_t needed = (n + threads - 1) / threads;
  const int64_t most = static_cast<int64_t>(Context::get(x.device()).multiprocessors()) * 16;
  return static_cast<int>(std::max<int64_t>(1, std::min(needed, most)));
}

// The loop itself: every thread takes items i, i + total, ...
#define DEMI_GRID_STRIDE(i, n)                                                           \
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

// N elements moved as one access of up to 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};
template <typename T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

// Whether 16-byte accesses may be used on this memory.
inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// FP32, FP16 or BF16, as visit_training, with an error of its own for FP64.
template <typename F>
decltype(auto) visit_cuda(DType dtype, const char* op, F&& f) {
  DEMI_CHECK(dtype != DType::F64, "[{}] fp64 exists on the CPU only", op);
  return visit_training(dtype, op, std::forward<F>(f));
}

// N elements read as FP32, written rounded once: accesses of up to 16 bytes, so p must be aligned to the smaller of 16
// bytes and N elements. N is a power of two.
template <int N, typename T>
__device__ __forceinline__ void load_floats(const T* p, float (&v)[N]) {
  constexpr int kStep = N < kPack<T> ? N : kPack<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const auto pack = *reinterpret_cast<const Pack<T, kStep>*>(p + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) v[i + j] = static_cast<float>(pack.value[j]);
  }
}
template <int N, typename T>
__device__ __forceinline__ void store_floats(T* p, const float (&v)[N]) {
  constexpr int kStep = N < kPack<T> ? N : kPack<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Pack<T, kStep> pack;
#pragma unroll
    for (int j = 0; j < kStep; ++j) pack.value[j] = static_cast<T>(v[i + j]);
    *reinterpret_cast<Pack<T, kStep>*>(p + i) = pack;
  }
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {  // for values without NaN
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

// The sum over a block of at most 1024 threads (a multiple of 32), in a fixed order, given to every thread.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float partial[32];
  v = warp_sum(v);
  __syncthreads();  // a second call must not overwrite what a slow warp still reads
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
  return warp_sum(v);
}

}  // namespace demi::kernels::cuda
