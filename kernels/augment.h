// Augmentation of CIFAR-style records in one pass: gather, random crop after zero padding, horizontal flip, normalize,
// cast.
//   y[n,h,w,c] = (u / 255 - mean[c]) / std_dev[c],  u the byte at (h + dy - pad, w' + dx - pad, c) of record index[n]
// with u = 0 outside, dy, dx in [0, 2 pad] and w' = w or W - 1 - w drawn from Philox(seed, epoch, index[n]): preparing
// a batch early, in another order or on another device changes nothing. (Padding is black before normalization, as in
// the usual recipe.)
#pragma once

#include <array>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

enum class RecordLayout : uint8_t { CHW, HWC };

struct AugmentOptions {
  RecordLayout layout = RecordLayout::CHW;
  int pad = 0;  // 0: no crop
  bool flip = false;
  std::array<float, 3> mean{0, 0, 0}, std_dev{1, 1, 1};
  uint64_t seed = 0, epoch = 0;
};

// Philox(seed, epoch, index[n]): word 0 % (2 pad + 1) is dy, word 1 % (2 pad + 1) is dx, word 2's top bit flips.
DEMI_BACKENDS(void augment(const Tensor& records, const Tensor& index, const AugmentOptions& options, Tensor& y);)

// records: uint8 [M, 3, H, W] or [M, H, W, 3]; index: int64 [N] into them, checked by the caller; -> y [N, H, W, 3] in
// FP32, FP16 or BF16.
inline Tensor augment(const Tensor& records, const Tensor& index, const AugmentOptions& options, DType dtype) {
  check_same_device("augment", records, index);
  const bool chw = options.layout == RecordLayout::CHW;
  DEMI_CHECK(records.dtype() == DType::U8 && records.rank() == 4 && records.size(chw ? 1 : 3) == 3,
             "[augment] takes uint8 records of 3 channels, not {} {}", records.dtype(), records.shape());
  DEMI_CHECK(index.dtype() == DType::I64 && index.rank() == 1, "[augment] takes an int64 list of records, not {} {}",
             index.dtype(), index.shape());
  Tensor y =
      Tensor::empty({index.size(0), records.size(chw ? 2 : 1), records.size(chw ? 3 : 2), 3}, dtype, records.device());
  if (y.numel() > 0) DEMI_DISPATCH(records, augment, records, index, options, y);
  return y;
}

}  // namespace demi::kernels
