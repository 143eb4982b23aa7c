// Batch norm in training, step 4: two launches. The block that comes last to a tile of channels joins what all blocks
// found there; the second pass walks up the rows that the first one walked down.
//
// Bytes that must move: x twice, y once: 23.5 us for [262144, 64] in FP16 at 4.28 TB/s. The second reading of x may
// come from the L2: an H200's has 63 MB, x takes 33.6 MB, and what of it is still there need not come from memory
// again. With all of it there 67 MB remain, 15.7 us. Adds over step 3: no launch for the statistics; and the second
// pass begins with the rows that were read last. A cache that drops what was used longest ago keeps the bottom of x
// after the first pass: a walk from the top would drop each row shortly before it comes to it. y is written with a hint
// to drop it first, so that it does not push x out. Which block comes last changes from run to run, the order of the
// joins does not.
#include "demi/bench/ladder/batch_norm.cuh"

namespace demi::bench::ladder {
namespace {

using kernels::cuda::counter_slot;
using kernels::cuda::kSlots;
using kernels::cuda::last_block;

constexpr int kMostTiles = 512;
static __device__ unsigned tiles_done[kSlots][kMostTiles];  // zero before and after every launch; a row a stream

__global__ void __launch_bounds__(kStatisticsThreads, kStatisticsBlocks)
    statistics_kernel(const Half* __restrict__ x, const float* weight, int64_t rows, int channels, Moments* partial,
                      int slot, float* mean, float* scale) {
  constexpr int kParts = kStatisticsThreads / kTileChannels;  // in the last block so many threads share a channel
  __shared__ Moments of_part[kParts][kTileChannels];
  const int in_tile = threadIdx.x % kTileChannels, part = threadIdx.x / kTileChannels;
  const int channel = blockIdx.y * kTileChannels + in_tile;
  const bool first = part == 0 && channel < channels;
  Moments v = block_moments(x, rows, channels);
  if (first) partial[int64_t{blockIdx.x} * channels + channel] = v;
  if (!last_block(&tiles_done[slot][blockIdx.y], gridDim.x)) return;

  v = {};
  for (unsigned chunk = part; chunk < gridDim.x && channel < channels; chunk += kParts) {
    const Moments* other = partial + int64_t{chunk} * channels + channel;  // past the L1: other blocks wrote it
    v = join(v, {__ldcg(&other->n), __ldcg(&other->mean), __ldcg(&other->m2)});
  }
  of_part[part][in_tile] = v;
  __syncthreads();
  if (!first) return;
  for (int i = 1; i < kParts; ++i) v = join(v, of_part[i][in_tile]);
  mean[channel] = v.mean;
  scale[channel] = scale_of(v, weight[channel]);
}

}  // namespace

void batch_norm_fused(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y) {
  check_batch_norm("4_fused", x, weight, bias, y, kPiece);
  const int64_t rows = x.size(0);
  const auto channels = static_cast<int>(x.size(1));
  const cudaStream_t stream = stream_of(x);
  const dim3 blocks = walk_grid(x, kStatisticsThreads, kStatisticsBlocks);
  DEMI_CHECK(blocks.y <= kMostTiles, "[4_fused] takes at most {} channels, not {}", kMostTiles * kTileChannels,
             channels);
  const Workspace workspace = workspace_for(x, blocks.x);
  statistics_kernel<<<blocks, kStatisticsThreads, 0, stream>>>(x.data<Half>(), weight.data<float>(), rows, channels,
                                                               workspace.partial, counter_slot(x), workspace.mean,
                                                               workspace.scale);
  DEMI_CUDA_CHECK(cudaGetLastError());
  apply_kernel<true><<<walk_grid(x, kApplyThreads, kApplyBlocks), kApplyThreads, 0, stream>>>(
      x.data<Half>(), workspace.mean, workspace.scale, bias.data<float>(), rows, channels, y.mutable_data<Half>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
