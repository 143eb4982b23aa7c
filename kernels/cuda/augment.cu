// Gather, crop, flip, normalize and cast of uint8 records in one pass (rules in kernels/augment.h): 3 bytes read and
// three elements written a pixel. A block takes images; a thread takes pixels and keeps its image's draws in registers.
#include "demi/kernels/augment.h"

#include "demi/core/random.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    augment_kernel(const uint8_t* __restrict__ records, const int64_t* __restrict__ index, AugmentOptions options,
                   int64_t images, int64_t height, int64_t width, T* __restrict__ y) {
  const bool chw = options.layout == RecordLayout::CHW;
  const int64_t pixels = height * width, pixel_stride = chw ? 1 : 3, channel_stride = chw ? pixels : 1;
  const auto range = static_cast<uint32_t>(2 * options.pad + 1);
  for (int64_t n = blockIdx.x; n < images; n += gridDim.x) {
    const Philox random(options.seed, options.epoch, static_cast<uint64_t>(index[n]));
    const int64_t dy = static_cast<int64_t>(random.word[0] % range) - options.pad;
    const int64_t dx = static_cast<int64_t>(random.word[1] % range) - options.pad;
    const bool flip = options.flip && (random.word[2] >> 31) != 0;
    const uint8_t* record = records + index[n] * pixels * 3;
    for (int64_t p = threadIdx.x; p < pixels; p += kThreads) {
      const int64_t h = p / width, w = p % width;
      const int64_t row = h + dy, column = (flip ? width - 1 - w : w) + dx;
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      const int64_t from = (row * width + column) * pixel_stride;
      T* to = y + (n * pixels + p) * 3;
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const float u = inside ? static_cast<float>(record[from + c * channel_stride]) : 0.0f;
        to[c] = static_cast<T>((u / 255.0f - options.mean[c]) / options.std_dev[c]);
      }
    }
  }
}

}  // namespace

void augment(const Tensor& records, const Tensor& index, const AugmentOptions& options, Tensor& y) {
  visit_cuda(y.dtype(), "augment", [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t images = index.numel();
    augment_kernel<<<blocks_for(images, y, 1), kThreads, 0, stream_of(y)>>>(
        records.data<uint8_t>(), index.data<int64_t>(), options, images, y.size(1), y.size(2), y.mutable_data<T>());
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
