// What the steps of batch norm share.
#pragma once

#include "demi/bench/ladder/steps.h"
#include "demi/kernels/cuda/last_block.cuh"

namespace demi::bench::ladder {

using kernels::cuda::load_floats;
using kernels::cuda::Pack;
using kernels::cuda::stream_of;

constexpr float kEps = 1e-5f;

// Count, mean and sum of squared deviations from it of some values. Sets of values are joined by the formula of Chan,
// Golub and LeVeque (1983), in which nothing cancels however large the mean is.
struct alignas(16) Moments {
  float n, mean, m2;
};
__device__ __forceinline__ Moments join(Moments a, Moments b) {
  if (b.n == 0.0f) return a;
  const float n = a.n + b.n, distance = b.mean - a.mean, share = b.n / n;
  return {n, a.mean + distance * share, a.m2 + b.m2 + distance * distance * a.n * share};
}
// From s1 = sum of (x - shift) and s2 = sum of its squares; shift is one of the values, so both stay small.
__device__ __forceinline__ Moments from_shifted(float n, float shift, float s1, float s2) {
  if (n == 0.0f) return {};
  const float mean = s1 / n, m2 = s2 - s1 * mean;
  return {n, shift + mean, m2 < 0.0f ? 0.0f : m2};
}
__device__ __forceinline__ Moments join_lanes(Moments v, int distance) {  // with the lane `distance` further up
  return join(v, {__shfl_down_sync(0xffffffffu, v.n, distance), __shfl_down_sync(0xffffffffu, v.mean, distance),
                  __shfl_down_sync(0xffffffffu, v.m2, distance)});
}

// What the second pass needs of a channel: y = (x - mean) * scale + bias. Folding the mean into the bias would cancel.
__device__ __forceinline__ float scale_of(Moments v, float weight) { return weight * rsqrtf(v.m2 / v.n + kEps); }

// FP32 workspace: what the blocks know of each channel, [chunks, C] Moments, then mean and scale [C].
struct Workspace {
  Tensor memory;
  Moments* partial;
  float *mean, *scale;
};
inline Workspace workspace_for(const Tensor& x, int64_t chunks) {
  const memory::Scope scope(memory::Category::Workspace);
  const int64_t channels = x.size(1), moments = chunks * channels * (sizeof(Moments) / sizeof(float));
  Tensor memory = Tensor::empty({moments + 2 * channels}, DType::F32, x.device());
  float* p = memory.mutable_data<float>();
  return {memory, reinterpret_cast<Moments*>(p), p + moments, p + moments + channels};
}

// Steps 2 and 3: a launch that joins partial to mean and scale; in batch_norm_2_coalesced.cu.
void finish_statistics(const Workspace& workspace, const Tensor& x, int64_t chunks, const Tensor& weight);

// How steps 3 and 4 lay threads over rows: a thread holds the 8 channels of a 16-byte access, 8 neighbours the 64 of a
// tile (128 bytes), the rest of a block has other rows. The grid is chunks x tiles; chunk i of n takes every n-th group
// of rows, so that all blocks together move down x as one front.
constexpr int kPiece = 8, kLanes = 8, kTileChannels = kPiece * kLanes;
struct Walk {
  int64_t first, step;  // this thread's rows
  int channel;          // its first channel; may lie behind the last
};
__device__ __forceinline__ Walk walk_of_thread() {
  const int64_t rows_a_block = blockDim.x / kLanes;
  return {blockIdx.x * rows_a_block + threadIdx.x / kLanes, gridDim.x * rows_a_block,
          static_cast<int>(blockIdx.y * kTileChannels + threadIdx.x % kLanes * kPiece)};
}

constexpr int kStatisticsThreads = 512, kStatisticsBlocks = 1, kStatisticsAhead = 8;  // blocks on a multiprocessor
constexpr int kApplyThreads = 256, kApplyBlocks = 3, kApplyAhead = 4;                 // rows ahead in a thread

// Visits this thread's rows, kAhead at a time: use(row, piece) is called when all their loads have been started.
// at(row) is the address of a piece.
template <int kAhead, typename At, typename Use>
__device__ __forceinline__ void walk_rows(const Walk& walk, int64_t rows, const At& at, const Use& use) {
  using Piece = Pack<Half, kPiece>;
  for (int64_t row = walk.first; row < rows; row += kAhead * walk.step) {
    Piece piece[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * walk.step < rows) piece[u] = *reinterpret_cast<const Piece*>(at(row + u * walk.step));
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * walk.step < rows) use(row + u * walk.step, piece[u]);
  }
}

// The moments of a block's rows: thread t < 64 gets those of the tile's channel t. For blocks of kStatisticsThreads.
__device__ __forceinline__ Moments block_moments(const Half* x, int64_t rows, int channels) {
  constexpr int kWarps = kStatisticsThreads / 32;
  __shared__ Moments of_warp[kWarps][kTileChannels];
  const Walk walk = walk_of_thread();
  float shift[kPiece] = {}, s1[kPiece] = {}, s2[kPiece] = {}, n = 0.0f;
  if (walk.channel < channels && walk.first < rows) {
    load_floats<kPiece>(x + walk.first * channels + walk.channel, shift);
    walk_rows<kStatisticsAhead>(
        walk, rows, [&](int64_t row) { return x + row * channels + walk.channel; },
        [&](int64_t, const Pack<Half, kPiece>& piece) {
          n += 1.0f;
#pragma unroll
          for (int j = 0; j < kPiece; ++j) {
            const float d = static_cast<float>(piece.value[j]) - shift[j];
            s1[j] += d;
            s2[j] += d * d;
          }
        });
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {  // the four rows of a warp, then its lanes 0 to 7 write
    Moments v = from_shifted(n, shift[j], s1[j], s2[j]);
    for (int distance = 16; distance >= kLanes; distance /= 2) v = join_lanes(v, distance);
    if (threadIdx.x % 32 < kLanes) of_warp[threadIdx.x / 32][threadIdx.x % 32 * kPiece + j] = v;
  }
  __syncthreads();
  Moments v{};
  if (threadIdx.x < kTileChannels)
    for (int warp = 0; warp < kWarps; ++warp) v = join(v, of_warp[warp][threadIdx.x]);
  return v;
}

// Steps 3 and 4, the second pass: y = (x - mean) * scale + bias. Upwards it begins with the rows that the first pass
// read last. y is written past what the L2 should rather keep: it is not read again here.
template <bool kUpwards>
__global__ void __launch_bounds__(kApplyThreads, kApplyBlocks)
    apply_kernel(const Half* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ scale,
                 const float* __restrict__ bias, int64_t rows, int channels, Half* __restrict__ y) {
  const Walk walk = walk_of_thread();
  if (walk.channel >= channels) return;
  float centre[kPiece], by[kPiece], shift[kPiece];
  load_floats<kPiece>(mean + walk.channel, centre);
  load_floats<kPiece>(scale + walk.channel, by);
  load_floats<kPiece>(bias + walk.channel, shift);
  const auto at = [&](int64_t row) { return (kUpwards ? rows - 1 - row : row) * channels + walk.channel; };
  walk_rows<kApplyAhead>(
      walk, rows, [&](int64_t row) { return x + at(row); },
      [&](int64_t row, Pack<Half, kPiece> piece) {
#pragma unroll
        for (int j = 0; j < kPiece; ++j)
          piece.value[j] = Half((static_cast<float>(piece.value[j]) - centre[j]) * by[j] + shift[j]);
        uint4 bits;
        memcpy(&bits, &piece, sizeof bits);
        __stcs(reinterpret_cast<uint4*>(y + at(row)), bits);
      });
}

// A grid of one to `a_multiprocessor` blocks of `threads` on each multiprocessor, none without rows.
inline dim3 walk_grid(const Tensor& x, int threads, int a_multiprocessor) {
  const int64_t tiles = (x.size(1) + kTileChannels - 1) / kTileChannels, rows_a_block = threads / kLanes;
  const int64_t fill = cuda::Context::get(x.device()).multiprocessors() * a_multiprocessor / tiles;
  const int64_t most = (x.size(0) + rows_a_block - 1) / rows_a_block;
  return {static_cast<unsigned>(std::max<int64_t>(1, std::min(fill, most))), static_cast<unsigned>(tiles)};
}

}  // namespace demi::bench::ladder
