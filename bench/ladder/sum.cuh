// What the steps of the sum share.
#pragma once

#include "demi/bench/ladder/steps.h"
#include "demi/kernels/cuda/last_block.cuh"

namespace demi::bench::ladder {

using kernels::cuda::block_sum;
using kernels::cuda::kPack;
using kernels::cuda::kThreads;
using kernels::cuda::load_floats;
using kernels::cuda::partial_sums;
using kernels::cuda::stream_of;
using kernels::cuda::warp_sum;

// f(pointer to x's elements) for FP16 and FP32.
template <typename F>
void visit_terms(const Tensor& x, const F& f) {
  if (x.dtype() == DType::F16)
    f(x.data<Half>());
  else
    f(x.data<float>());
}

// Steps 2 and 3: pass(from, n, to, blocks, stream) adds kThreads of n numbers a block; passes follow until one is left.
template <typename Pass>
void sum_in_passes(const Tensor& x, Tensor& y, const Pass& pass) {
  const cudaStream_t stream = stream_of(x);
  const auto blocks_of = [](int64_t n) { return (n + kThreads - 1) / kThreads; };
  const auto room_for = [&](int64_t n) { return n == 1 ? y : partial_sums(static_cast<int>(n), x); };
  int64_t n = blocks_of(x.numel());
  Tensor sums = room_for(n);
  visit_terms(x, [&](const auto* terms) { pass(terms, x.numel(), sums.mutable_data<float>(), n, stream); });
  while (n > 1) {
    const int64_t fewer = blocks_of(n);
    Tensor next = room_for(fewer);
    pass(sums.data<float>(), n, next.mutable_data<float>(), fewer, stream);
    sums = next;
    n = fewer;
  }
}

// Steps 4 and 5: the sum of what a thread of the grid takes of n terms: 16-byte loads, kAhead of them started before
// the first is used, and a chain of additions for each element of a load.
template <typename T>
__device__ float thread_sum(const T* x, int64_t n) {
  constexpr int N = kPack<T>, kAhead = 4;
  const int64_t threads = int64_t{gridDim.x} * kThreads, thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t packs = n / N;
  float chain[N] = {};
  int64_t i = thread;
  for (; i + (kAhead - 1) * threads < packs; i += kAhead * threads) {
    float v[kAhead][N];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) load_floats<N>(x + (i + u * threads) * N, v[u]);
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int j = 0; j < N; ++j) chain[j] += v[u][j];
  }
  for (; i < packs; i += threads) {
    float v[N];
    load_floats<N>(x + i * N, v);
#pragma unroll
    for (int j = 0; j < N; ++j) chain[j] += v[j];
  }
  if (packs * N + thread < n) chain[0] += static_cast<float>(x[packs * N + thread]);  // fewer than N are left over
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
    for (int j = 0; j < width; ++j) chain[j] += chain[j + width];
  return chain[0];
}

// Blocks for thread_sum(): what a card runs at once, so that each thread has as many terms as possible.
constexpr int kBlocksAMultiprocessor = 4;
inline int sum_blocks(const Tensor& x) {
  const int64_t packs = x.numel() * static_cast<int64_t>(size_of(x.dtype())) / 16;
  const int64_t fill = cuda::Context::get(x.device()).multiprocessors() * kBlocksAMultiprocessor;
  return static_cast<int>(std::max<int64_t>(1, std::min((packs + kThreads - 1) / kThreads, fill)));
}

}  // namespace demi::bench::ladder
