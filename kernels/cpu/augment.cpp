// Gather, crop, flip, normalize and cast of uint8 records, one image at a time. Normalizing a byte is a table of 256
// values a channel.
#include "demi/kernels/augment.h"

#include "demi/core/random.h"
#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

void augment(const Tensor& records, const Tensor& index, const AugmentOptions& options, Tensor& y) {
  visit_training(y.dtype(), "augment", [&](auto type) {
    using T = typename decltype(type)::type;
    std::array<std::array<T, 256>, 3> table;
    for (size_t c = 0; c < 3; ++c)
      for (size_t u = 0; u < 256; ++u)
        table[c][u] = T((static_cast<float>(u) / 255.0f - options.mean[c]) / options.std_dev[c]);

    const int64_t height = y.size(1), width = y.size(2), image = height * width * 3;
    const bool chw = options.layout == RecordLayout::CHW;
    const int64_t column_stride = chw ? 1 : 3, row_stride = width * column_stride;
    const int64_t channel_stride = chw ? height * width : 1;
    const auto range = static_cast<uint32_t>(2 * options.pad + 1);
    const uint8_t* bytes = records.data<uint8_t>();
    const int64_t* chosen = index.data<int64_t>();
    T* out = y.mutable_data<T>();
    parallel_for(index.numel(), std::max<int64_t>(1, kGrain / image), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const Philox random(options.seed, options.epoch, static_cast<uint64_t>(chosen[n]));
        const int64_t dy = static_cast<int64_t>(random.word[0] % range) - options.pad;
        const int64_t dx = static_cast<int64_t>(random.word[1] % range) - options.pad;
        const bool flip = options.flip && (random.word[2] >> 31) != 0;
        const uint8_t* record = bytes + chosen[n] * image;
        T* to = out + n * image;
        for (int64_t h = 0; h < height; ++h) {
          const int64_t row = h + dy;
          const bool inside_row = row >= 0 && row < height;
          for (int64_t w = 0; w < width; ++w, to += 3) {
            const int64_t column = (flip ? width - 1 - w : w) + dx;
            const bool inside = inside_row && column >= 0 && column < width;
            const uint8_t* from = inside ? record + row * row_stride + column * column_stride : nullptr;
            for (int64_t c = 0; c < 3; ++c) to[c] = table[static_cast<size_t>(c)][from ? from[c * channel_stride] : 0];
          }
        }
      }
    });
  });
}

}  // namespace demi::kernels::cpu
