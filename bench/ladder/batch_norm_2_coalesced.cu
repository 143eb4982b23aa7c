// Batch norm in training, step 2: a warp takes 32 neighbouring channels of a row, blocks share out the rows. Three
// launches: each block's moments of its rows; their join, mean and scale; the result.
//
// Bytes that must move: x twice, y once: 23.5 us for [262144, 64] in FP16 at 4.28 TB/s.
// Adds over step 1: a warp's load is one run of 64 bytes, all of them used, and blocks are as many as the card takes.
// A channel's rows now end up in many threads and blocks, so partial results have to be joined: each as count, mean and
// sum of squared deviations, never as sum and sum of squares, whose difference E[x^2] - E[x]^2 cancels where the mean
// is large. Within a thread x - (its first value) is summed instead of x. All joins have a fixed order. What holds it
// back: 2 bytes a load. The instructions cost as much as the memory, and few bytes are under way.
#include "demi/bench/ladder/batch_norm.cuh"

namespace demi::bench::ladder {
namespace {

constexpr int kLines = 8;  // rows that a block reads together

struct Place {
  int channel;
  int64_t first, step;
};
__device__ Place place_of_thread() {
  return {static_cast<int>(blockIdx.y * 32 + threadIdx.x), int64_t{blockIdx.x} * kLines + threadIdx.y,
          int64_t{gridDim.x} * kLines};
}

__global__ void __launch_bounds__(32 * kLines)
    moments_kernel(const Half* x, int64_t rows, int channels, Moments* partial) {
  __shared__ Moments of_line[kLines][32];
  const Place p = place_of_thread();
  Moments v{};
  if (p.channel < channels && p.first < rows) {
    const float shift = x[p.first * channels + p.channel];
    float n = 0.0f, s1 = 0.0f, s2 = 0.0f;
    for (int64_t row = p.first; row < rows; row += p.step) {
      const float d = static_cast<float>(x[row * channels + p.channel]) - shift;
      n += 1.0f;
      s1 += d;
      s2 += d * d;
    }
    v = from_shifted(n, shift, s1, s2);
  }
  of_line[threadIdx.y][threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.y != 0 || p.channel >= channels) return;
  for (int line = 1; line < kLines; ++line) v = join(v, of_line[line][threadIdx.x]);
  partial[int64_t{blockIdx.x} * channels + p.channel] = v;
}

// A warp a channel.
__global__ void __launch_bounds__(32 * kLines)
    finish_kernel(const Moments* partial, int chunks, int channels, const float* weight, float* mean, float* scale) {
  const int channel = blockIdx.x * kLines + threadIdx.y, lane = threadIdx.x;
  if (channel >= channels) return;
  Moments v{};
  for (int i = lane; i < chunks; i += 32) v = join(v, partial[int64_t{i} * channels + channel]);
  for (int distance = 16; distance > 0; distance /= 2) v = join_lanes(v, distance);
  if (lane != 0) return;
  mean[channel] = v.mean;
  scale[channel] = scale_of(v, weight[channel]);
}

__global__ void __launch_bounds__(32 * kLines)
    coalesced_apply_kernel(const Half* x, const float* mean, const float* scale, const float* bias, int64_t rows,
                           int channels, Half* y) {
  const Place p = place_of_thread();
  if (p.channel >= channels) return;
  const float centre = mean[p.channel], by = scale[p.channel], shift = bias[p.channel];
  for (int64_t row = p.first; row < rows; row += p.step) {
    const int64_t i = row * channels + p.channel;
    y[i] = Half((static_cast<float>(x[i]) - centre) * by + shift);
  }
}

}  // namespace

void finish_statistics(const Workspace& workspace, const Tensor& x, int64_t chunks, const Tensor& weight) {
  const auto channels = static_cast<int>(x.size(1));
  finish_kernel<<<(channels - 1) / kLines + 1, dim3(32, kLines), 0, stream_of(x)>>>(
      workspace.partial, static_cast<int>(chunks), channels, weight.data<float>(), workspace.mean, workspace.scale);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void batch_norm_coalesced(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y) {
  check_batch_norm("2_coalesced", x, weight, bias, y);
  const int64_t rows = x.size(0), tiles = (x.size(1) - 1) / 32 + 1;
  const auto channels = static_cast<int>(x.size(1));
  const int64_t fill = cuda::Context::get(x.device()).multiprocessors() * 8 / tiles;
  const int64_t chunks = std::max<int64_t>(1, std::min(fill, (rows - 1) / kLines + 1));
  const dim3 blocks(static_cast<unsigned>(chunks), static_cast<unsigned>(tiles)), threads(32, kLines);
  const Workspace workspace = workspace_for(x, chunks);
  moments_kernel<<<blocks, threads, 0, stream_of(x)>>>(x.data<Half>(), rows, channels, workspace.partial);
  DEMI_CUDA_CHECK(cudaGetLastError());
  finish_statistics(workspace, x, chunks, weight);
  coalesced_apply_kernel<<<blocks, threads, 0, stream_of(x)>>>(
      x.data<Half>(), workspace.mean, workspace.scale, bias.data<float>(), rows, channels, y.mutable_data<Half>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
