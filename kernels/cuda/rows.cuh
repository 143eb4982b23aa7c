// How threads are laid over rows and columns. Along rows they form groups that share one: `lanes` of them, a power of
// two up to 32, or the whole block of kThreads.
#pragma once

#include <limits>

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int power_of_two_above(int64_t n, int most) {  // the smallest power of two >= n, at most `most`
  int p = 1;
  while (p < n && p < most) p *= 2;
  return p;
}

// How many threads share a row of `extent` elements when there are `rows` of them, each taking `N` or more.
inline int lanes_for(int64_t extent, int64_t rows, int N) {
  if (extent > 4096 || (extent >= 1024 && rows < 4096)) return kThreads;
  return power_of_two_above(ceil_div(extent, N), 32);
}
inline int blocks_for_rows(int64_t rows, int lanes, const Tensor& x) {
  return blocks_for(ceil_div(rows, kThreads / lanes), x, 1);
}

// Rows too long and too few to give one block each are cut into `count` parts of `length` elements (a multiple of 64,
// so that parts keep the row's alignment).
struct Split {
  int64_t count = 1, length = 0;
};
inline Split split_rows(int64_t rows, int64_t extent, int64_t longest, const Tensor& x) {
  const int64_t fill = ceil_div(4 * Context::get(x.device()).multiprocessors(), rows);
  const int64_t parts = std::max(ceil_div(extent, longest), std::min(fill, extent / 8192));
  Split s;
  s.length = std::max<int64_t>(64, ceil_div(ceil_div(extent, std::max<int64_t>(1, parts)), 64) * 64);
  s.count = std::max<int64_t>(1, ceil_div(extent, s.length));
  return s;
}

// Across rows ([extent, columns] with packs of N columns): how a block's threads are laid over columns and extent, and
// into how many parts the extent is cut.
struct ColumnPlan {
  int tx;
  Split split;
};
inline ColumnPlan plan_columns(int64_t columns, int64_t extent, int N, const Tensor& x) {
  const int64_t processors = Context::get(x.device()).multiprocessors();
  // A thread takes up to 32 elements of a column, fewer where columns alone do not fill the card. Neighbours read at
  // least 64 bytes in one run.
  const bool few = columns < processors * 1024;
  const int narrowest = power_of_two_above(columns, N > 1 ? 8 : 32);
  const int ty = power_of_two_above(ceil_div(extent, few ? 4 : 32), kThreads / narrowest);
  ColumnPlan plan{kThreads / ty, {}};
  const int64_t strips = ceil_div(columns, plan.tx);
  int64_t parts = ceil_div(extent, ty * int64_t{128});
  if (columns * N * extent >= 1 << 17)
    parts = std::max(parts, std::min(ceil_div(4 * processors, strips), extent / (ty * int64_t{16})));
  parts = std::max<int64_t>(1, parts);
  plan.split.length = std::max<int64_t>(1, ceil_div(extent, parts));
  plan.split.count = std::max<int64_t>(1, ceil_div(extent, plan.split.length));
  return plan;
}

// FP32 workspace for the results of parts.
inline Tensor partials(int64_t count, const Tensor& x) {
  const memory::Scope scope(memory::Category::Workspace);
  return Tensor::empty({count}, DType::F32, x.device());
}

// `v` of all lanes of the group combined by f (which must commute), the same result in every lane. All threads of the
// block must come here together.
template <typename F>
__device__ __forceinline__ float combine_lanes(float v, int lanes, float identity, F f) {
  for (int mask = min(lanes, 32) / 2; mask > 0; mask /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, mask));
  if (lanes > 32) {
    __shared__ float partial[kThreads / 32];
    __syncthreads();  // a second call must not overwrite what a slow warp still reads
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < kThreads / 32 ? partial[threadIdx.x % 32] : identity;
    for (int mask = kThreads / 64; mask > 0; mask /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, mask));
    v = __shfl_sync(0xffffffffu, v, 0);
  }
  return v;
}
__device__ __forceinline__ float sum_lanes(float v, int lanes) {
  return combine_lanes(v, lanes, 0.0f, [](float a, float b) { return a + b; });
}

// Calls one(i) or pack(i) for the elements [0, n) of a row that starts at p, shared among the lanes: packs of N
// elements from the first 16-byte boundary on, single elements before it and behind. `one` and `pack` get the element's
// index.
template <int N, int kUnroll = 4, typename T, typename One, typename Packs>
__device__ __forceinline__ void for_row(const T* p, int64_t n, int lane, int lanes, const One& one, const Packs& pack) {
  if (n < 4 * N) {
    for (int64_t i = lane; i < n; i += lanes) one(i);
    return;
  }
  // Without packs there is no boundary to reach: a short row would end before it.
  const int head = N == 1 ? 0 : static_cast<int>((16 - reinterpret_cast<uintptr_t>(p) % 16) % 16 / sizeof(T));
  const int64_t packs = (n - head) / N;
  for (int64_t i = lane; i < head; i += lanes) one(i);
#pragma unroll kUnroll
  for (int64_t i = lane; i < packs; i += lanes) pack(head + i * N);
  for (int64_t i = head + packs * N + lane; i < n; i += lanes) one(i);
}

}  // namespace demi::kernels::cuda
