// Channel padding: out[i, c] = in[i, c] where both exist, else 0, over rows i = everything before the last axis.
// Tensor cores want 16-bit channels in multiples of 8: an RGB image becomes 8 channels wide here, and results come
// back. Bytes: the input once, the output once.
#include "demi/kernels/cuda/conv_kernels.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

template <typename Word>
__global__ void copy_channels_kernel(const Word* in, int64_t rows_in, int64_t channels_in, Word* out, int64_t rows_out,
                                     int64_t channels_out) {
  DEMI_GRID_STRIDE(i, rows_out * channels_out) {
    const int64_t row = i / channels_out, c = i - row * channels_out;
    out[i] = row < rows_in && c < channels_in ? in[row * channels_in + c] : Word(0);
  }
}

// The same, 16 bytes of output a thread: channels_out is a multiple of the pack, out is 16-byte aligned.
template <typename Word>
__global__ void copy_channels_packed_kernel(const Word* in, int64_t rows_in, int64_t channels_in, Word* out,
                                            int64_t rows_out, int64_t channels_out) {
  constexpr int kWidth = kPack<Word>;
  const int64_t packs = channels_out / kWidth;
  DEMI_GRID_STRIDE(i, rows_out * packs) {
    const int64_t row = i / packs, first = (i - row * packs) * kWidth;
    Pack<Word, kWidth> pack;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      pack.value[j] = row < rows_in && first + j < channels_in ? in[row * channels_in + first + j] : Word(0);
    reinterpret_cast<Pack<Word, kWidth>*>(out)[i] = pack;
  }
}

template <typename Word>
void launch(const Tensor& in, Tensor& out) {
  const int64_t channels_in = in.size(-1), channels_out = out.size(-1);
  const int64_t rows_in = in.numel() / channels_in, rows_out = out.numel() / channels_out;
  const auto* from = static_cast<const Word*>(in.raw());
  auto* to = static_cast<Word*>(out.mutable_raw());
  if (channels_out % kPack<Word> == 0 && aligned16(to)) {
    copy_channels_packed_kernel<Word><<<blocks_for(out.numel() / kPack<Word>, out), kThreads, 0, stream_of(out)>>>(
        from, rows_in, channels_in, to, rows_out, channels_out);
  } else {
    copy_channels_kernel<Word><<<blocks_for(out.numel(), out), kThreads, 0, stream_of(out)>>>(
        from, rows_in, channels_in, to, rows_out, channels_out);
  }
  DEMI_CUDA_CHECK(cudaGetLastError());
}

// out[c, R-1-r, S-1-s, k] = w[k, r, s, c]: a transposition of [K, RSC] in tiles, whose rows go to other places. Reads
// and writes are coalesced. Bytes: the filter twice.
__global__ void __launch_bounds__(kThreads)
    turn_filter_kernel(const float* w, int64_t filters, int64_t taps, int64_t channels, float* out) {
  __shared__ float tile[32][33];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t columns = taps * channels, across = (columns + 31) / 32, tiles = across * ((filters + 31) / 32);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t column = t % across * 32, filter = t / across * 32;
    for (int i = warp; i < 32; i += kThreads / 32) {
      if (filter + i < filters && column + lane < columns) tile[i][lane] = w[(filter + i) * columns + column + lane];
    }
    __syncthreads();
    for (int i = warp; i < 32; i += kThreads / 32) {
      const int64_t j = column + i, k = filter + lane;
      if (j < columns && k < filters)
        out[(j % channels * taps + taps - 1 - j / channels) * filters + k] = tile[lane][i];
    }
    __syncthreads();
  }
}

// One thread watches the nanosecond clock. The loop is bounded, should the clock stand still.
__global__ void hold_kernel(int64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  for (int i = 0; i < (1 << 20); ++i) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - start >= static_cast<uint64_t>(nanoseconds)) break;
  }
}

}  // namespace

void copy_channels(const Tensor& in, Tensor& out) {
  if (out.numel() == 0) return;
  DEMI_CHECK(in.numel() > 0 && in.dtype() == out.dtype(), "[copy_channels] from {} {} into {} {}", in.dtype(),
             in.shape(), out.dtype(), out.shape());
  size_of(in.dtype()) == 2 ? launch<uint16_t>(in, out) : launch<uint32_t>(in, out);
}

void turn_filter(const Tensor& w, Tensor& out) {
  const int64_t tiles = (w.numel() / w.size(0) + 31) / 32 * ((w.size(0) + 31) / 32);
  turn_filter_kernel<<<blocks_for(tiles * kThreads, w), kThreads, 0, stream_of(w)>>>(
      w.data<float>(), w.size(0), w.size(1) * w.size(2), w.size(3), out.mutable_data<float>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void hold_stream(Device device, int microseconds) {
  hold_kernel<<<1, 1, 0, Context::get(device).stream()>>>(static_cast<int64_t>(microseconds) * 1000);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
