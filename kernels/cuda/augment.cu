// Gather, crop, flip, normalize and cast of uint8 records in one pass (rules in kernels/augment.h): 3 bytes read and
// three elements written a pixel. A thread makes a pixel and draws its image's numbers anew, so that none waits for
// another and there are threads enough to fill the card.
#include "demi/kernels/augment.h"

#include "demi/core/random.h"
#include "demi/kernels/cuda/strided.cuh"

namespace demi::kernels::cuda {
namespace {

struct Places {  // of a pixel: which image, which row
  Divider pixels, width;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    augment_kernel(const uint8_t* __restrict__ records, const int64_t* __restrict__ index, AugmentOptions options,
                   int64_t images, int64_t height, int64_t width, Places places, T* __restrict__ y) {
  const bool chw = options.layout == RecordLayout::CHW;
  const int64_t pixels = height * width, pixel_stride = chw ? 1 : 3, channel_stride = chw ? pixels : 1;
  const auto range = static_cast<uint32_t>(2 * options.pad + 1);
  DEMI_GRID_STRIDE(i, images * pixels) {
    const int64_t n = places.pixels(i), p = i - n * pixels, h = places.width(p), w = p - h * width;
    const Philox random(options.seed, options.epoch, static_cast<uint64_t>(index[n]));
    const int64_t dy = static_cast<int64_t>(random.word[0] % range) - options.pad;
    const int64_t dx = static_cast<int64_t>(random.word[1] % range) - options.pad;
    const bool flip = options.flip && (random.word[2] >> 31) != 0;
    const int64_t row = h + dy, column = (flip ? width - 1 - w : w) + dx;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    const int64_t from = index[n] * pixels * 3 + (row * width + column) * pixel_stride;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const float u = inside ? static_cast<float>(records[from + c * channel_stride]) : 0.0f;
      y[i * 3 + c] = static_cast<T>((u / 255.0f - options.mean[c]) / options.std_dev[c]);
    }
  }
}

}  // namespace

void augment(const Tensor& records, const Tensor& index, const AugmentOptions& options, Tensor& y) {
  visit_cuda(y.dtype(), "augment", [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t images = index.numel(), height = y.size(1), width = y.size(2), pixels = height * width;
    const Places places{Divider(pixels, images * pixels), Divider(width, pixels)};
    augment_kernel<<<blocks_for(images * pixels, y), kThreads, 0, stream_of(y)>>>(
        records.data<uint8_t>(), index.data<int64_t>(), options, images, height, width, places, y.mutable_data<T>());
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
